//! Queue pairs: where work requests are posted.

use std::collections::VecDeque;
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rdma_sys::{
    ibv_create_qp_ex, ibv_destroy_qp, ibv_post_recv, ibv_post_send, ibv_qp, ibv_qp_cap,
    ibv_qp_create_send_ops_flags, ibv_qp_init_attr_ex, ibv_qp_init_attr_mask, ibv_qp_type, ibv_recv_wr,
    ibv_send_flags, ibv_send_wr, ibv_sge, ibv_wr_opcode, imm_data_invalidated_rkey_union_t,
    rdma_create_qp_ex, rdma_destroy_qp, rdma_t, wr_t,
};
use rustix::io::Errno;

use super::{
    Attached, CompletionQueue, Data, Id, MemoryRegion, Operation, Place, ProtectionDomain, Reason, Remote,
    RequestId, SendRequest, SharedReceiveQueue, Slice, VerbsError,
};

/// Slices of memory that one request gathers at most.
const SLICES: usize = 2;
/// Numbers queue pairs within the process.
static SERIALS: AtomicU64 = AtomicU64::new(0);

/// Where a queue pair finds receive requests.
#[derive(Clone, Debug)]
pub enum Receives {
    /// In a queue shared with others.
    Shared(Arc<SharedReceiveQueue>),
    /// In a queue of its own, of this length.
    Own(u32),
}

/// What a queue pair is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Send requests that it holds.
    pub sends: u32,
    /// Bytes that a request may carry itself, if the device can; it may turn out to be less.
    pub inline: u32,
}

/// A connection's queues. Dropping it ends all of its requests.
#[derive(Debug)]
pub struct QueuePair {
    raw: *mut ibv_qp,
    number: u32,
    serial: u64,
    inline: u32,
    place: Arc<Place>,
    posted: u64,
    scratch: Scratch,
    /// There until it is destroyed.
    needs: Option<Needs>,
}

/// What a queue pair needs, and what it holds for the device.
#[derive(Debug)]
struct Needs {
    id: Id,
    attached: Vec<Arc<MemoryRegion>>,
    /// Regions that are lent to a request until it has ended.
    lent: VecDeque<(u64, Arc<MemoryRegion>)>,
    domain: Arc<ProtectionDomain>,
    _completions: Arc<CompletionQueue>,
    _receives: Receives,
}

/// What is left of a queue pair that has been destroyed: its id and its memory. Dropping that may take long; an id that
/// was connecting over iWARP takes seconds.
#[derive(Debug)]
#[must_use = "dropping it may take long: choose where"]
pub struct Remains {
    _needs: Option<Needs>,
}

// SAFETY: libibverbs allows all calls on a queue pair from any thread; posting takes `&mut self`, and the pointers in
// the scratch lists are only followed during a call.
unsafe impl Send for QueuePair {}
// SAFETY: as above.
unsafe impl Sync for QueuePair {}

/// Room to put requests together without allocating each time.
#[derive(Default)]
struct Scratch {
    sends: Vec<ibv_send_wr>,
    receives: Vec<ibv_recv_wr>,
    slices: Vec<[ibv_sge; SLICES]>,
}

impl std::fmt::Debug for Scratch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Scratch").finish_non_exhaustive()
    }
}

impl QueuePair {
    /// Makes the queue pair of a connection that is about to come up. All its completions go to one queue.
    ///
    /// # Errors
    /// When the device has no room for it.
    pub fn new(
        id: Id,
        domain: &Arc<ProtectionDomain>,
        completions: &Arc<CompletionQueue>,
        receives: Receives,
        capacity: Capacity,
    ) -> Result<Self, VerbsError> {
        let context = domain.context();
        let place = id.place(Some(context.place()));
        if !context.is_device_of(&id) || !completions.context().is_device_of(&id) {
            return Err(VerbsError::new("rdma_create_qp", Reason::System(Errno::XDEV), &Arc::new(place)));
        }
        let (srq, own) = match &receives {
            Receives::Shared(queue) => (queue.raw(), 0),
            Receives::Own(requests) => (std::ptr::null_mut(), *requests),
        };
        let mut inline = capacity.inline;
        loop {
            let mut attributes = attributes(domain, completions);
            attributes.srq = srq;
            attributes.cap = ibv_qp_cap {
                max_send_wr: capacity.sends,
                max_recv_wr: own,
                max_send_sge: SLICES as u32,
                max_recv_sge: 1,
                max_inline_data: inline,
            };
            // SAFETY: the id is alive and has a device; domain and queues are alive and, as was checked, of that device.
            let code = unsafe { rdma_create_qp_ex(id.raw(), &raw mut attributes) };
            if code != 0 {
                let error = VerbsError::last("rdma_create_qp", &Arc::new(place.clone()));
                // What a device can take inline is only found out by asking for it.
                if inline > 0 && matches!(error.errno(), Some(Errno::INVAL | Errno::NOMEM | Errno::OPNOTSUPP))
                {
                    inline /= 2;
                    continue;
                }
                return Err(error);
            }
            // SAFETY: the call has set the queue pair, which stays as it is until it is destroyed.
            let (raw, number) = unsafe {
                let raw = (*id.raw()).qp;
                (raw, (*raw).qp_num)
            };
            let needs = Needs {
                id,
                attached: Vec::new(),
                lent: VecDeque::new(),
                domain: Arc::clone(domain),
                _completions: Arc::clone(completions),
                _receives: receives,
            };
            return Ok(Self {
                raw,
                number,
                serial: SERIALS.fetch_add(1, Ordering::Relaxed),
                inline: attributes.cap.max_inline_data,
                place: Arc::new(Place { queue_pair: Some(number), ..place }),
                posted: 0,
                scratch: Scratch::default(),
                needs: Some(needs),
            });
        }
    }

    /// What the device says of itself: whether it can write with an immediate. `None` when it does not say.
    #[must_use]
    pub fn declares_immediates(
        domain: &Arc<ProtectionDomain>,
        completions: &Arc<CompletionQueue>,
    ) -> Option<bool> {
        let plain = ibv_qp_create_send_ops_flags::IBV_QP_EX_WITH_RDMA_WRITE
            | ibv_qp_create_send_ops_flags::IBV_QP_EX_WITH_SEND;
        let with_immediates = plain | ibv_qp_create_send_ops_flags::IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM;
        let can_be_made = |operations: ibv_qp_create_send_ops_flags| {
            let mut attributes = attributes(domain, completions);
            attributes.cap = ibv_qp_cap {
                max_send_wr: 4,
                max_recv_wr: 4,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: 0,
            };
            attributes.comp_mask |= ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS.0;
            attributes.send_ops_flags = u64::from(operations.0);
            // SAFETY: device, domain and queue are alive and belong together.
            let made = unsafe { ibv_create_qp_ex(domain.context().raw(), &raw mut attributes) };
            match made {
                Some(raw) if !raw.is_null() => {
                    // SAFETY: it was just made and nobody else knows it.
                    unsafe { ibv_destroy_qp(raw) };
                    true
                }
                _ => false,
            }
        };
        match (can_be_made(with_immediates), can_be_made(plain)) {
            (true, _) => Some(true),
            (false, true) => Some(false),
            (false, false) => None,
        }
    }

    fn needs(&self) -> &Needs {
        self.needs.as_ref().expect("only a destroyed queue pair needs nothing")
    }

    fn needs_mut(&mut self) -> &mut Needs {
        self.needs.as_mut().expect("only a destroyed queue pair needs nothing")
    }

    /// Ends all requests: the device is done with them afterwards.
    pub fn destroy(mut self) -> Remains {
        self.end();
        Remains { _needs: self.needs.take() }
    }

    fn end(&mut self) {
        if let Some(needs) = &self.needs {
            // SAFETY: the queue pair was made through the id, which is alive, and is destroyed once: `destroy` takes what
            // it needs away afterwards. The device is done with all its requests when the call returns.
            unsafe { rdma_destroy_qp(needs.id.raw()) };
        }
    }

    /// Its number.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Bytes that a request can carry itself.
    #[must_use]
    pub fn inline_limit(&self) -> usize {
        self.inline as usize
    }

    /// The connection.
    #[must_use]
    pub fn id(&self) -> &Id {
        &self.needs().id
    }

    /// The connection, to let it report elsewhere.
    pub fn id_mut(&mut self) -> &mut Id {
        &mut self.needs_mut().id
    }

    /// Where it is, for errors.
    #[must_use]
    pub fn place(&self) -> &Arc<Place> {
        &self.place
    }

    /// Send requests posted so far.
    #[must_use]
    pub fn posted(&self) -> u64 {
        self.posted
    }

    /// Holds a region for as long as the queue pair lives, so that requests may name it.
    ///
    /// # Panics
    /// When the region belongs to another protection domain: the device would refuse it.
    pub fn attach(&mut self, region: Arc<MemoryRegion>) -> Attached {
        let owner = self.serial;
        let needs = self.needs_mut();
        assert!(Arc::ptr_eq(region.domain(), &needs.domain), "a region of another protection domain");
        needs.attached.push(region);
        Attached { owner, index: needs.attached.len() - 1 }
    }

    /// An attached region.
    ///
    /// # Panics
    /// When it was attached to another queue pair.
    #[must_use]
    pub fn region(&self, attached: Attached) -> &Arc<MemoryRegion> {
        assert_eq!(attached.owner, self.serial, "a region that is attached to another queue pair");
        &self.needs().attached[attached.index]
    }

    /// Posts requests in one go, in order; the last one's number.
    ///
    /// # Errors
    /// When the device refuses one: the connection is then of no further use.
    ///
    /// # Panics
    /// When a slice reaches beyond its region, or inline data are more than the limit.
    pub fn post<'a>(
        &mut self,
        requests: impl IntoIterator<Item = SendRequest<'a>>,
    ) -> Result<u64, VerbsError> {
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.slices.clear();
        scratch.sends.clear();
        for (at, request) in requests.into_iter().enumerate() {
            scratch.slices.push(self.gather(&request.data));
            let mut raw = empty_send(self.posted + 1 + at as u64);
            raw.num_sge = match &request.data {
                Data::Inline([]) => 0,
                Data::Inline(_) | Data::Slices(_, None) => 1,
                Data::Slices(_, Some(_)) => 2,
            };
            if matches!(request.data, Data::Inline(_)) {
                raw.send_flags |= ibv_send_flags::IBV_SEND_INLINE.0;
            }
            if request.signaled {
                raw.send_flags |= ibv_send_flags::IBV_SEND_SIGNALED.0;
            }
            if request.solicited {
                raw.send_flags |= ibv_send_flags::IBV_SEND_SOLICITED.0;
            }
            match request.operation {
                Operation::Write(remote) => {
                    raw.opcode = ibv_wr_opcode::IBV_WR_RDMA_WRITE;
                    raw.wr = remote_part(remote);
                }
                Operation::WriteWithImmediate(remote, immediate) => {
                    raw.opcode = ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM;
                    raw.wr = remote_part(remote);
                    raw.imm_data_invalidated_rkey_union =
                        imm_data_invalidated_rkey_union_t { imm_data: immediate.to_be() };
                }
                Operation::Send => raw.opcode = ibv_wr_opcode::IBV_WR_SEND,
            }
            scratch.sends.push(raw);
        }
        let result = self.submit(&mut scratch, "ibv_post_send");
        self.scratch = scratch;
        result
    }

    /// Reads from the peer's memory into a piece of a region, which is kept until the request has ended; its number. The
    /// end is reported.
    ///
    /// # Errors
    /// When the device refuses.
    ///
    /// # Panics
    /// When the piece reaches beyond the region, or the region belongs to another protection domain.
    pub fn post_read(
        &mut self,
        remote: Remote,
        into: &Arc<MemoryRegion>,
        offset: usize,
        length: usize,
    ) -> Result<u64, VerbsError> {
        assert!(Arc::ptr_eq(into.domain(), &self.needs().domain), "a region of another protection domain");
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.slices.clear();
        scratch.sends.clear();
        scratch.slices.push([element(into, offset, length), NOTHING]);
        let mut raw = empty_send(self.posted + 1);
        raw.wr_id = RequestId::read(self.posted + 1).0;
        raw.num_sge = 1;
        raw.opcode = ibv_wr_opcode::IBV_WR_RDMA_READ;
        raw.send_flags = ibv_send_flags::IBV_SEND_SIGNALED.0;
        raw.wr = remote_part(remote);
        scratch.sends.push(raw);
        // Before it is posted: whatever becomes of it, the region is held.
        let number = self.posted + 1;
        self.needs_mut().lent.push_back((number, Arc::clone(into)));
        let result = self.submit(&mut scratch, "ibv_post_send (READ)");
        self.scratch = scratch;
        result
    }

    fn submit(&mut self, scratch: &mut Scratch, verb: &'static str) -> Result<u64, VerbsError> {
        let count = scratch.sends.len();
        let (sends, slices) = (scratch.sends.as_mut_ptr(), scratch.slices.as_mut_ptr());
        for at in 0..count {
            // SAFETY: both lists have `count` places and do not change before the call is over.
            unsafe {
                (*sends.add(at)).sg_list = slices.add(at).cast();
                if at + 1 < count {
                    (*sends.add(at)).next = sends.add(at + 1);
                }
            }
        }
        let mut refused = std::ptr::null_mut();
        // SAFETY: the queue pair is alive; the requests form a list that ends. Memory that they name is registered, held
        // by this queue pair until it is destroyed or the request has ended, and long enough; what is inline is
        // borrowed and copied by the call.
        let code = unsafe { ibv_post_send(self.raw, sends, &raw mut refused) };
        self.posted += count as u64;
        VerbsError::check_verb(code, verb, &self.place)?;
        Ok(self.posted)
    }

    /// Posts requests that receive a message each, in order. Only with a receive queue of its own.
    ///
    /// # Errors
    /// When there is no room.
    ///
    /// # Panics
    /// When a slice reaches beyond its region.
    pub fn post_receives(&mut self, slices: impl Iterator<Item = (u32, Slice)>) -> Result<(), VerbsError> {
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.slices.clear();
        scratch.receives.clear();
        for (number, slice) in slices {
            let region = self.region(slice.region);
            scratch.slices.push([element(region, slice.offset, slice.length), NOTHING]);
            scratch.receives.push(ibv_recv_wr {
                wr_id: RequestId::receive(number).0,
                next: std::ptr::null_mut(),
                sg_list: std::ptr::null_mut(),
                num_sge: 1,
            });
        }
        let count = scratch.receives.len();
        let (requests, elements) = (scratch.receives.as_mut_ptr(), scratch.slices.as_mut_ptr());
        for at in 0..count {
            // SAFETY: both lists have `count` places and do not change before the call is over.
            unsafe {
                (*requests.add(at)).sg_list = elements.add(at).cast();
                if at + 1 < count {
                    (*requests.add(at)).next = requests.add(at + 1);
                }
            }
        }
        let mut result = Ok(());
        if count > 0 {
            let mut refused = std::ptr::null_mut();
            // SAFETY: as for sending; the memory is attached and so held until the queue pair is destroyed.
            let code = unsafe { ibv_post_recv(self.raw, requests, &raw mut refused) };
            result = VerbsError::check_verb(code, "ibv_post_recv", &self.place);
        }
        self.scratch = scratch;
        result
    }

    /// READs up to this number have ended: gives back what was lent to them.
    pub fn ended(&mut self, number: u64) {
        let lent = &mut self.needs_mut().lent;
        while lent.front().is_some_and(|(lent_to, _)| *lent_to <= number) {
            lent.pop_front();
        }
    }

    fn gather(&self, data: &Data<'_>) -> [ibv_sge; SLICES] {
        let slice = |slice: &Slice| element(self.region(slice.region), slice.offset, slice.length);
        match data {
            Data::Inline(bytes) => {
                assert!(bytes.len() <= self.inline as usize, "{} bytes inline", bytes.len());
                [ibv_sge { addr: bytes.as_ptr() as u64, length: bytes.len() as u32, lkey: 0 }, NOTHING]
            }
            Data::Slices(first, second) => [slice(first), second.as_ref().map_or(NOTHING, slice)],
        }
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        self.end();
    }
}

const NOTHING: ibv_sge = ibv_sge { addr: 0, length: 0, lkey: 0 };

fn element(region: &MemoryRegion, offset: usize, length: usize) -> ibv_sge {
    let end = offset.checked_add(length).expect("an offset within memory");
    assert!(
        end <= region.length() && u32::try_from(length).is_ok(),
        "{offset} + {length} bytes of {}",
        region.length()
    );
    ibv_sge { addr: region.address() + offset as u64, length: length as u32, lkey: region.local_key() }
}

fn remote_part(remote: Remote) -> wr_t {
    wr_t { rdma: rdma_t { remote_addr: remote.address, rkey: remote.key } }
}

fn empty_send(number: u64) -> ibv_send_wr {
    // SAFETY: the struct consists of integers, pointers and unions of them, for all of which zeros are valid.
    let mut raw: ibv_send_wr = unsafe { MaybeUninit::zeroed().assume_init() };
    raw.wr_id = number;
    raw
}

fn attributes(domain: &Arc<ProtectionDomain>, completions: &Arc<CompletionQueue>) -> ibv_qp_init_attr_ex {
    // SAFETY: as for a send request: zeros mean that nothing is asked for.
    let mut attributes: ibv_qp_init_attr_ex = unsafe { MaybeUninit::zeroed().assume_init() };
    attributes.send_cq = completions.raw();
    attributes.recv_cq = completions.raw();
    attributes.qp_type = ibv_qp_type::IBV_QPT_RC;
    attributes.pd = domain.raw();
    attributes.comp_mask = ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_PD.0;
    attributes
}
