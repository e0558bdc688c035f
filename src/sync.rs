//! What threads share, as in `std::sync`, with a mutex that is never poisoned.
//!
//! A panic while a mutex is held is a bug of ours. It ends what panicked, which is reported, and
//! nothing else: behind a mutex is plain data that each step leaves whole, and the others continue
//! with it.
//!
//! `parking_lot` has such a mutex too, but all mutexes of a process share its queues: a fork may
//! copy one of them locked, and then a locker that the copy connects could wait forever.

use std::sync;
pub(crate) use std::sync::{Arc, Condvar, MutexGuard, OnceLock, PoisonError, Weak};

#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(sync::Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(sync::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns `None` if another thread has it.
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        match self.0.try_lock() {
            Ok(guard) => Some(guard),
            Err(sync::TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(sync::TryLockError::WouldBlock) => None,
        }
    }

    pub(crate) fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}
