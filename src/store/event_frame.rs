//! Frames of events that are held while they are used, and made again when they are needed later.
use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use watershed_protocol::{Frame, ItemBytes};

use super::tally::{ByteCharge, ByteTally};

/// Makes the frame of one event again, byte for byte as it was.
pub trait FrameOrigin: fmt::Debug + Send + Sync {
    /// Returns the frame.
    fn frame(&self) -> Bytes;

    /// Returns the bytes of memory that it takes.
    fn size(&self) -> usize;

    /// Returns those of them that another window holds as well, while it has the event.
    fn shared(&self) -> usize;
}

/// The frame of an event.
#[derive(Debug)]
pub(super) enum EventFrame {
    /// As upstream sent it.
    Received(Bytes),
    /// It can be made again.
    Remade(Arc<RemadeFrame>),
}

/// A frame, and the object in it, that are not held all the time.
#[derive(Debug)]
pub(super) struct RemadeFrame {
    held: Mutex<Option<HeldFrame>>,
    /// The frame was used since the last look.
    is_used: AtomicBool,
    /// Counts the frame while it is held.
    tally: ByteTally,
    length: u32,
    /// The place of the object's bytes.
    object: Range<u32>,
    origin: Box<dyn FrameOrigin>,
}

#[derive(Debug)]
struct HeldFrame {
    frame: Bytes,
    _charge: ByteCharge,
}

impl EventFrame {
    /// Returns the frame of an event.
    pub(super) fn get(&self) -> Bytes {
        match self {
            Self::Received(frame) => frame.clone(),
            Self::Remade(frame) => frame.frame(),
        }
    }

    /// Returns the length of the frame.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Received(frame) => frame.len(),
            Self::Remade(frame) => frame.length as usize,
        }
    }

    /// Returns the bytes of memory that it takes for as long as the event is held.
    pub(super) fn size(&self) -> usize {
        match self {
            Self::Received(frame) => frame.len(),
            Self::Remade(frame) => {
                size_of::<RemadeFrame>() + 2 * size_of::<usize>() + frame.origin.size()
            }
        }
    }

    /// Returns those of them that another window holds as well, while it has the event.
    pub(super) fn shared(&self) -> usize {
        match self {
            Self::Received(_) => 0,
            Self::Remade(frame) => frame.origin.shared(),
        }
    }

    /// Releases a frame that can be made again, unless it was used since the last call. Returns its
    /// bytes.
    pub(super) fn release_if_unused(&self) -> usize {
        match self {
            Self::Received(_) => 0,
            Self::Remade(frame) => frame.release_if_unused(),
        }
    }
}

impl RemadeFrame {
    /// Returns a frame that `origin` makes again; `None` if the object's bytes are no part of it.
    pub(super) fn new(
        frame: &Frame,
        object: &ItemBytes,
        origin: Box<dyn FrameOrigin>,
        tally: &ByteTally,
    ) -> Option<Self> {
        let start = object.as_slice().as_ptr().addr();
        let start = start.checked_sub(frame.frame.as_ptr().addr())?;
        let end = start + object.len();
        if end > frame.frame.len() {
            return None;
        }
        let held = HeldFrame {
            frame: frame.frame.clone(),
            _charge: tally.charge(frame.frame.len()),
        };
        Some(Self {
            held: Mutex::new(Some(held)),
            is_used: AtomicBool::new(true),
            tally: tally.clone(),
            length: u32::try_from(frame.frame.len()).ok()?,
            object: start as u32..end as u32,
            origin,
        })
    }

    /// Returns the frame, and holds it for others if it is made again.
    fn frame(&self) -> Bytes {
        // Written only if that is news: readers share the memory around it.
        if !self.is_used.load(Ordering::Relaxed) {
            self.is_used.store(true, Ordering::Relaxed);
        }
        let mut held = self.lock();
        let held = held.get_or_insert_with(|| HeldFrame {
            frame: self.origin.frame(),
            _charge: self.tally.charge(self.length as usize),
        });
        held.frame.clone()
    }

    /// Returns the object's bytes. A frame that is made again for it is not held: few need it.
    pub(super) fn object(&self) -> ItemBytes {
        let held = self.lock().as_ref().map(|held| held.frame.clone());
        let frame = held.unwrap_or_else(|| self.origin.frame());
        ItemBytes::new(frame.slice(self.object.start as usize..self.object.end as usize))
    }

    /// Returns the length of the object's bytes.
    pub(super) fn object_len(&self) -> usize {
        self.object.len()
    }

    fn release_if_unused(&self) -> usize {
        if self.is_used.swap(false, Ordering::Relaxed) {
            return 0;
        }
        let released = self.lock().take();
        released.map_or(0, |held| held.frame.len())
    }

    fn lock(&self) -> MutexGuard<'_, Option<HeldFrame>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
