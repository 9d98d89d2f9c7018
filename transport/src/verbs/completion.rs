//! Completion queues, and the channels that wake whoever waits for them.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::ptr::NonNull;
use std::sync::Arc;

use rdma_sys::{
    ibv_ack_cq_events, ibv_comp_channel, ibv_cq, ibv_create_comp_channel, ibv_create_cq,
    ibv_destroy_comp_channel, ibv_destroy_cq, ibv_get_cq_event, ibv_poll_cq, ibv_req_notify_cq, ibv_wc,
    ibv_wc_flags,
};
use rustix::fs::OFlags;
use rustix::io::Errno;

use super::RequestId;
use super::{CompletionStatus, Context, Reason, VerbsError};

/// Completions that one call takes at most.
const BATCH: usize = 32;

/// A descriptor that becomes readable when a completion queue that was armed gets something.
#[derive(Debug)]
pub struct CompletionChannel {
    raw: NonNull<ibv_comp_channel>,
    context: Arc<Context>,
}

// SAFETY: libibverbs allows all calls on a completion channel from any thread.
unsafe impl Send for CompletionChannel {}
// SAFETY: as above.
unsafe impl Sync for CompletionChannel {}

impl CompletionChannel {
    /// A new channel, which never blocks.
    ///
    /// # Errors
    /// When there are no more descriptors.
    pub fn new(context: &Arc<Context>) -> Result<Arc<Self>, VerbsError> {
        // SAFETY: the context is open.
        let raw = NonNull::new(unsafe { ibv_create_comp_channel(context.raw()) })
            .ok_or_else(|| VerbsError::last("ibv_create_comp_channel", context.place()))?;
        let channel = Self { raw, context: Arc::clone(context) };
        rustix::fs::fcntl_getfl(&channel)
            .and_then(|flags| rustix::fs::fcntl_setfl(&channel, flags | OFlags::NONBLOCK))
            .map_err(|errno| VerbsError::new("fcntl", Reason::System(errno), context.place()))?;
        Ok(Arc::new(channel))
    }
}

impl AsFd for CompletionChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open for as long as the channel lives.
        unsafe { BorrowedFd::borrow_raw(self.as_raw_fd()) }
    }
}

impl AsRawFd for CompletionChannel {
    fn as_raw_fd(&self) -> RawFd {
        // SAFETY: libibverbs does not write the descriptor after the channel was made.
        unsafe { (&raw const (*self.raw.as_ptr()).fd).read() }
    }
}

impl Drop for CompletionChannel {
    fn drop(&mut self) {
        // SAFETY: queues hold an `Arc` of their channel, so none is left on it.
        let code = unsafe { ibv_destroy_comp_channel(self.raw.as_ptr()) };
        debug_assert_eq!(code, 0, "ibv_destroy_comp_channel");
    }
}

/// How a work request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Which request.
    pub request: RequestId,
    /// How it ended. If not well, only this, the request and the queue pair are known.
    pub status: CompletionStatus,
    /// The vendor's word on a failure.
    pub vendor: u32,
    /// The queue pair that it was for.
    pub queue_pair: u32,
    /// What came with it, for receives.
    pub immediate: Option<u32>,
    /// Bytes received.
    pub bytes: u32,
}

/// Where work requests end up when they are done.
#[derive(Debug)]
pub struct CompletionQueue {
    raw: NonNull<ibv_cq>,
    channel: Arc<CompletionChannel>,
    entries: u32,
}

// SAFETY: libibverbs allows all calls on a completion queue from any thread.
unsafe impl Send for CompletionQueue {}
// SAFETY: as above.
unsafe impl Sync for CompletionQueue {}

impl CompletionQueue {
    /// A queue for at least so many completions. One more than it holds would break it for good, so whoever makes
    /// queue pairs on it must keep count.
    ///
    /// # Errors
    /// When the device cannot hold that many.
    pub fn new(channel: &Arc<CompletionChannel>, entries: u32) -> Result<Arc<Self>, VerbsError> {
        let context = &channel.context;
        let count = i32::try_from(entries).unwrap_or(i32::MAX);
        // SAFETY: context and channel are alive; completion vector 0 exists on every device.
        let raw =
            unsafe { ibv_create_cq(context.raw(), count, std::ptr::null_mut(), channel.raw.as_ptr(), 0) };
        let raw = NonNull::new(raw).ok_or_else(|| VerbsError::last("ibv_create_cq", context.place()))?;
        Ok(Arc::new(Self { raw, channel: Arc::clone(channel), entries }))
    }

    pub(super) fn raw(&self) -> *mut ibv_cq {
        self.raw.as_ptr()
    }

    /// The device.
    #[must_use]
    pub fn context(&self) -> &Arc<Context> {
        &self.channel.context
    }

    /// Its channel.
    #[must_use]
    pub fn channel(&self) -> &Arc<CompletionChannel> {
        &self.channel
    }

    /// Completions that it holds.
    #[must_use]
    pub fn entries(&self) -> u32 {
        self.entries
    }

    /// Takes completions, as many as there are up to a batch, in order; how many, and whether there may be more.
    ///
    /// # Errors
    /// When the queue is broken.
    #[inline]
    pub fn poll(&self, mut each: impl FnMut(Completion)) -> Result<(usize, bool), VerbsError> {
        let mut entries = [const { MaybeUninit::<ibv_wc>::uninit() }; BATCH];
        // SAFETY: the queue is alive, and there is room for as many entries as are asked for.
        let count = unsafe { ibv_poll_cq(self.raw.as_ptr(), BATCH as i32, entries.as_mut_ptr().cast()) };
        let count = usize::try_from(count)
            .map_err(|_| VerbsError::new("ibv_poll_cq", Reason::System(Errno::IO), self.context().place()))?;
        for entry in &entries[..count] {
            // SAFETY: the call has filled in as many entries as it returned.
            let entry = unsafe { entry.assume_init_ref() };
            each(read(entry));
        }
        Ok((count, count == BATCH))
    }

    /// Asks for an event on the channel when the next completion comes; with `solicited`, the next that the peer asked
    /// to be noticed, or that failed. What came before the call makes no event: look again afterwards.
    ///
    /// # Errors
    /// When the device refuses.
    pub fn arm(&self, solicited: bool) -> Result<(), VerbsError> {
        // SAFETY: the queue is alive.
        let code = unsafe { ibv_req_notify_cq(self.raw.as_ptr(), i32::from(solicited)) };
        VerbsError::check_verb(code, "ibv_req_notify_cq", self.context().place())
    }

    /// Takes all events from the channel; whether there were any. Only for a queue that is alone on its channel.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn drain_events(&self) -> Result<bool, VerbsError> {
        let mut taken = 0;
        loop {
            let (mut queue, mut user) = (std::ptr::null_mut(), std::ptr::null_mut());
            // SAFETY: the channel is alive, and both arguments are where the results go.
            let code = unsafe { ibv_get_cq_event(self.channel.raw.as_ptr(), &raw mut queue, &raw mut user) };
            if code != 0 {
                let error = VerbsError::last("ibv_get_cq_event", self.context().place());
                if taken > 0 {
                    // SAFETY: the queue is alive, and so many events were taken and not acknowledged yet.
                    unsafe { ibv_ack_cq_events(self.raw.as_ptr(), taken) };
                }
                return match error.errno() {
                    Some(Errno::AGAIN) => Ok(taken > 0),
                    _ => Err(error),
                };
            }
            debug_assert_eq!(queue, self.raw.as_ptr(), "another queue on the channel");
            taken += 1;
        }
    }
}

fn read(entry: &ibv_wc) -> Completion {
    let has_immediate = entry.wc_flags & ibv_wc_flags::IBV_WC_WITH_IMM.0 != 0;
    Completion {
        request: RequestId(entry.wr_id),
        status: CompletionStatus::from_wire(entry.status),
        vendor: entry.vendor_err,
        queue_pair: entry.qp_num,
        // SAFETY: the flag says that the union holds an immediate, and any 32 bits are one.
        immediate: has_immediate
            .then(|| u32::from_be(unsafe { entry.imm_data_invalidated_rkey_union.imm_data })),
        bytes: entry.byte_len,
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        // SAFETY: queue pairs hold an `Arc` of their queue, so none is left on it; all events were acknowledged.
        let code = unsafe { ibv_destroy_cq(self.raw.as_ptr()) };
        debug_assert_eq!(code, 0, "ibv_destroy_cq");
    }
}
