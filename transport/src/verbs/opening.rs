//! Why a device cannot be used, which the connection manager keeps to itself: of whatever goes wrong while it opens one it
//! says that there is none, or that memory is short.

use std::ffi::CStr;
use std::ptr::NonNull;
use std::sync::Arc;

use rdma_sys::{
    ibv_alloc_pd, ibv_close_device, ibv_context, ibv_dealloc_pd, ibv_device, ibv_free_device_list,
    ibv_get_device_list, ibv_open_device,
};
use rustix::fs::{Mode, OFlags};

use super::{Place, Reason, VerbsError};

/// Does what the connection manager does first with a device that has this name, and this node.
///
/// # Errors
/// The first thing that fails. A device that libibverbs does not list is not tried.
pub(crate) fn try_to_open(device: &str, node: Option<&str>) -> Result<(), VerbsError> {
    let place = Arc::new(Place { device: Some(device.to_owned()), ..Place::default() });
    // The libraries look for another node when the first cannot be opened, and remember only that there is none.
    let open = |node: &str, verb| {
        let path = format!("/dev/infiniband/{node}");
        let opened = rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
        opened.map_err(|errno| VerbsError::new(verb, Reason::System(errno), &place))
    };
    drop(open("rdma_cm", "open of /dev/infiniband/rdma_cm")?);
    if let Some(node) = node {
        drop(open(node, "open of /dev/infiniband/uverbs*")?);
    }
    let list = List::read(&place)?;
    let Some(found) = list.find(device) else { return Ok(()) };
    // SAFETY: the list, which is alive, holds the device.
    let opened = NonNull::new(unsafe { ibv_open_device(found.as_ptr()) });
    let opened = Opened(opened.ok_or_else(|| VerbsError::last("ibv_open_device", &place))?);
    // SAFETY: the device is open.
    let domain = NonNull::new(unsafe { ibv_alloc_pd(opened.0.as_ptr()) });
    let domain = domain.ok_or_else(|| VerbsError::last("ibv_alloc_pd", &place))?;
    // SAFETY: it was just made, and nothing was made in it.
    unsafe { ibv_dealloc_pd(domain.as_ptr()) };
    Ok(())
}

/// The devices that libibverbs knows.
struct List {
    raw: NonNull<*mut ibv_device>,
    count: usize,
}

impl List {
    fn read(place: &Arc<Place>) -> Result<Self, VerbsError> {
        let mut count = 0;
        // SAFETY: the argument is where the count goes.
        let raw = NonNull::new(unsafe { ibv_get_device_list(&raw mut count) });
        let raw = raw.ok_or_else(|| VerbsError::last("ibv_get_device_list", place))?;
        Ok(Self { raw, count: usize::try_from(count).unwrap_or(0) })
    }

    fn find(&self, name: &str) -> Option<NonNull<ibv_device>> {
        // SAFETY: the list has so many entries, which are devices until it is freed, and their names end with a zero.
        unsafe {
            let devices = std::slice::from_raw_parts(self.raw.as_ptr(), self.count);
            devices
                .iter()
                .filter_map(|device| NonNull::new(*device))
                .find(|device| CStr::from_ptr((*device.as_ptr()).name.as_ptr()).to_bytes() == name.as_bytes())
        }
    }
}

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: the list was made by libibverbs and is freed once. Devices that were opened stay open.
        unsafe { ibv_free_device_list(self.raw.as_ptr()) };
    }
}

/// An open device.
struct Opened(NonNull<ibv_context>);

impl Drop for Opened {
    fn drop(&mut self) {
        // SAFETY: it was opened here, and what was made on it is gone.
        unsafe { ibv_close_device(self.0.as_ptr()) };
    }
}
