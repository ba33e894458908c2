//! What the standard library would bring: memory that is never given back, as a run is short, and a panic that traps.

use core::alloc::{GlobalAlloc, Layout};
use core::arch::wasm32;
use core::sync::atomic::{AtomicUsize, Ordering};

const PAGE_BYTES: usize = 65536;

struct Bump(AtomicUsize);

#[global_allocator]
static MEMORY: Bump = Bump(AtomicUsize::new(0));

extern "C" {
    /// The linker's: where the program's own data ends.
    static __heap_base: u8;
}

// SAFETY: a module has one thread; what was given out is never given out again.
unsafe impl GlobalAlloc for Bump {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let next = match self.0.load(Ordering::Relaxed) {
            0 => core::ptr::addr_of!(__heap_base) as usize,
            next => next,
        };
        let mask = layout.align() - 1;
        let start = match next.checked_add(mask) {
            Some(start) => start & !mask,
            None => return core::ptr::null_mut(),
        };
        let end = match start.checked_add(layout.size()) {
            Some(end) => end,
            None => return core::ptr::null_mut(),
        };
        let have = wasm32::memory_size(0) * PAGE_BYTES;
        if end > have && wasm32::memory_grow(0, (end - have + PAGE_BYTES - 1) / PAGE_BYTES) == usize::MAX {
            return core::ptr::null_mut();
        }
        self.0.store(end, Ordering::Relaxed);
        start as *mut u8
    }

    unsafe fn dealloc(&self, _: *mut u8, _: Layout) {}
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    wasm32::unreachable()
}
