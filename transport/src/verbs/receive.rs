//! Receive requests that many queue pairs share.

use std::ptr::NonNull;
use std::sync::Arc;

use rdma_sys::{
    ibv_create_srq, ibv_destroy_srq, ibv_post_srq_recv, ibv_recv_wr, ibv_srq, ibv_srq_attr, ibv_srq_init_attr,
};

use super::RequestId;
use super::{ProtectionDomain, VerbsError};

/// Receive requests that one call posts at most.
const CHAIN: usize = 32;

/// A queue of receive requests without memory: each takes one immediate, from whichever queue pair it comes.
#[derive(Debug)]
pub struct SharedReceiveQueue {
    raw: NonNull<ibv_srq>,
    domain: Arc<ProtectionDomain>,
}

// SAFETY: libibverbs allows all calls on a shared receive queue from any thread.
unsafe impl Send for SharedReceiveQueue {}
// SAFETY: as above.
unsafe impl Sync for SharedReceiveQueue {}

impl SharedReceiveQueue {
    /// What its requests are called in completions: one is like the other.
    pub const REQUEST: RequestId = RequestId::receive(u32::MAX);

    /// A queue for so many requests.
    ///
    /// # Errors
    /// When the device has no such queues, or none that large.
    pub fn new(domain: &Arc<ProtectionDomain>, requests: u32) -> Result<Arc<Self>, VerbsError> {
        let mut attributes = ibv_srq_init_attr {
            srq_context: std::ptr::null_mut(),
            // No request names memory, but some devices refuse a queue whose requests could not.
            attr: ibv_srq_attr { max_wr: requests, max_sge: 1, srq_limit: 0 },
        };
        // SAFETY: the domain is alive and the attributes are complete.
        let raw = NonNull::new(unsafe { ibv_create_srq(domain.raw(), &raw mut attributes) })
            .ok_or_else(|| VerbsError::last("ibv_create_srq", domain.context().place()))?;
        Ok(Arc::new(Self { raw, domain: Arc::clone(domain) }))
    }

    pub(super) fn raw(&self) -> *mut ibv_srq {
        self.raw.as_ptr()
    }

    /// Posts so many receive requests.
    ///
    /// # Errors
    /// When there is no room.
    pub fn post(&self, mut count: u32) -> Result<(), VerbsError> {
        while count > 0 {
            let chunk = (count as usize).min(CHAIN);
            let mut requests: [ibv_recv_wr; CHAIN] = std::array::from_fn(|_| ibv_recv_wr {
                wr_id: Self::REQUEST.0,
                next: std::ptr::null_mut(),
                sg_list: std::ptr::null_mut(),
                num_sge: 0,
            });
            let first = requests.as_mut_ptr();
            for at in 1..chunk {
                // SAFETY: both places are within the array, which does not move before the call is over.
                unsafe { (*first.add(at - 1)).next = first.add(at) };
            }
            let mut refused = std::ptr::null_mut();
            // SAFETY: the queue is alive; the requests form a list that ends, and name no memory.
            let code = unsafe { ibv_post_srq_recv(self.raw.as_ptr(), first, &raw mut refused) };
            VerbsError::check_verb(code, "ibv_post_srq_recv", self.domain.context().place())?;
            count -= chunk as u32;
        }
        Ok(())
    }
}

impl Drop for SharedReceiveQueue {
    fn drop(&mut self) {
        // SAFETY: queue pairs hold an `Arc` of their receive queue, so none is left on it.
        let code = unsafe { ibv_destroy_srq(self.raw.as_ptr()) };
        debug_assert_eq!(code, 0, "ibv_destroy_srq");
    }
}
