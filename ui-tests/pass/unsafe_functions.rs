//! Shapes that the crates in `editions`, which forbid `unsafe`, cannot contain.

use dlock_runtime::{Error, distributed_lock};

#[distributed_lock(key = "a:<id>")]
async unsafe fn documented_as_unsafe(id: u8, pointer: *const u8) -> Result<u8, Error> {
    // SAFETY: the caller promises it.
    Ok(id + unsafe { *pointer })
}

#[expect(improper_ctypes_definitions, reason = "no future is, annotated or not")]
#[distributed_lock(key = "a:<id>", on_contended = return(Ok(0)))]
#[unsafe(no_mangle)]
pub async extern "C" fn dlock_exported(id: u8) -> Result<u8, Error> {
    Ok(id)
}

struct Holder(*const u8);

impl Holder {
    #[distributed_lock(key = "a", guard = lock)]
    async unsafe fn method(&self) -> Result<u8, Error> {
        lock.check()?;
        // SAFETY: the caller promises it.
        Ok(unsafe { *self.0 })
    }
}

fn main() {
    // SAFETY: the futures are not run.
    let _futures = unsafe { (documented_as_unsafe(1, &2), || Holder(&2).method()) };
    drop(dlock_exported(1));
}
