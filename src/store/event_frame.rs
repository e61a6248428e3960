//! Frames of events that are held while they are used, and made again when they are needed later.
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use bytes::Bytes;
use watershed_protocol::{Frame, ItemBytes, ResourceVersion};

use super::tally::{ByteCharge, ByteTally};

/// Bytes of held frames from which on no further one is held that is made again. Late watches of a
/// whole window would otherwise make all of them.
const MAX_REMADE: usize = 64 << 20;

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
    /// Has the frame while it is held.
    frames: HeldFrames,
    /// The version of the event.
    version: ResourceVersion,
    length: u32,
    /// The place of the object's bytes.
    object: Range<u32>,
    origin: Box<dyn FrameOrigin>,
}

/// The frames of a window that can be made again, and are held now. Cheap to clone.
///
/// Late watches use few of many frames, so that a look at those of all events would cost more than
/// it finds.
#[derive(Clone, Debug, Default)]
pub(super) struct HeldFrames(Arc<HeldFramesOfWindow>);

#[derive(Debug, Default)]
struct HeldFramesOfWindow {
    bytes: ByteTally,
    frames: Mutex<BTreeMap<FrameKey, Weak<RemadeFrame>>>,
}

/// The version of an event, and the address of its frame: deletions may share a version.
type FrameKey = (ResourceVersion, usize);

#[derive(Debug)]
struct HeldFrame {
    frame: Bytes,
    _charge: ByteCharge,
}

impl HeldFrames {
    /// Returns their bytes.
    pub(super) fn bytes(&self) -> usize {
        self.0.bytes.bytes()
    }

    /// Returns `true` if there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// Releases the frames of events up to a version that nobody has used since the last call.
    /// Returns their bytes.
    pub(super) fn release_unused(&self, until: ResourceVersion) -> usize {
        let mut aged = {
            let mut frames = self.lock();
            let later = frames.split_off(&(ResourceVersion(until.0.saturating_add(1)), 0));
            std::mem::replace(&mut *frames, later)
        };
        let mut released = 0;
        // Without the lock, as these may be many. A frame that is made again meanwhile is added.
        aged.retain(|_, frame| {
            let bytes = frame.upgrade().map(|frame| frame.release_if_unused());
            released += bytes.flatten().unwrap_or(0);
            bytes == Some(None)
        });
        self.lock().append(&mut aged);
        released
    }

    fn add(&self, frame: &Arc<RemadeFrame>) {
        self.lock().insert(frame.key(), Arc::downgrade(frame));
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<FrameKey, Weak<RemadeFrame>>> {
        self.0.frames.lock().unwrap_or_else(PoisonError::into_inner)
    }
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
}

impl RemadeFrame {
    /// Returns a frame that `origin` makes again; `None` if the object's bytes are no part of it.
    pub(super) fn new(
        frame: &Frame,
        version: ResourceVersion,
        object: &ItemBytes,
        origin: Box<dyn FrameOrigin>,
        frames: &HeldFrames,
    ) -> Option<Arc<Self>> {
        let start = object.as_slice().as_ptr().addr();
        let start = start.checked_sub(frame.frame.as_ptr().addr())?;
        let end = start + object.len();
        if end > frame.frame.len() {
            return None;
        }
        let held = HeldFrame {
            frame: frame.frame.clone(),
            _charge: frames.0.bytes.charge(frame.frame.len()),
        };
        let remade = Arc::new(Self {
            held: Mutex::new(Some(held)),
            is_used: AtomicBool::new(true),
            frames: frames.clone(),
            version,
            length: u32::try_from(frame.frame.len()).ok()?,
            object: start as u32..end as u32,
            origin,
        });
        frames.add(&remade);
        Some(remade)
    }

    /// Returns the frame, and holds it for others if it is made again, unless too many are held.
    fn frame(self: &Arc<Self>) -> Bytes {
        // Written only if that is news: readers share the memory around it.
        if !self.is_used.load(Ordering::Relaxed) {
            self.is_used.store(true, Ordering::Relaxed);
        }
        let mut held = self.lock();
        if held.is_none() && self.frames.bytes() >= MAX_REMADE {
            return self.origin.frame();
        }
        let held = held.get_or_insert_with(|| {
            let frame = self.origin.frame();
            self.frames.add(self);
            HeldFrame {
                frame,
                _charge: self.frames.0.bytes.charge(self.length as usize),
            }
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

    fn key(&self) -> FrameKey {
        (self.version, ptr::from_ref(self).addr())
    }

    /// Releases the frame, unless it was used since the last call. Returns its bytes then.
    fn release_if_unused(&self) -> Option<usize> {
        if self.is_used.swap(false, Ordering::Relaxed) {
            return None;
        }
        let released = self.lock().take();
        Some(released.map_or(0, |held| held.frame.len()))
    }

    fn lock(&self) -> MutexGuard<'_, Option<HeldFrame>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for RemadeFrame {
    /// Frees the memory at once that is kept for a weak reference.
    fn drop(&mut self) {
        if self.lock().is_some() {
            self.frames.lock().remove(&self.key());
        }
    }
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests {
    use watershed_protocol::EventKind;

    use super::*;

    /// Makes a frame again.
    #[derive(Debug)]
    struct CopyOf(Bytes);

    impl FrameOrigin for CopyOf {
        fn frame(&self) -> Bytes {
            self.0.clone()
        }

        fn size(&self) -> usize {
            0
        }

        fn shared(&self) -> usize {
            0
        }
    }

    fn remade(frames: &HeldFrames, version: u64) -> Arc<RemadeFrame> {
        let whole = Bytes::from_static(b"<object>");
        let object = whole.slice(1..7);
        let frame = Frame {
            kind: EventKind::Added,
            object: object.clone(),
            frame: whole.clone(),
        };
        let (version, object) = (ResourceVersion(version), ItemBytes::new(object));
        let origin = Box::new(CopyOf(whole));
        RemadeFrame::new(&frame, version, &object, origin, frames).unwrap()
    }

    #[test]
    fn only_frames_that_are_held_are_looked_at() {
        let frames = HeldFrames::default();
        let events: Vec<_> = (1..=10).map(|version| remade(&frames, version)).collect();
        let looked_at = || frames.lock().len();
        assert_eq!((looked_at(), frames.bytes()), (10, 80));
        assert_eq!(frames.release_unused(ResourceVersion(8)), 0, "just used");
        assert_eq!(frames.release_unused(ResourceVersion(8)), 64);
        assert_eq!((looked_at(), frames.bytes()), (2, 16));
        // Made again once, and used by two.
        assert_eq!(events[3].frame(), events[3].frame());
        assert_eq!((looked_at(), frames.bytes()), (3, 24));
        drop(events);
        assert!(frames.is_empty());
        assert_eq!(frames.bytes(), 0);
    }
}
