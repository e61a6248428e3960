//! Upstream's events and lists with objects as they are held.
use bytes::{Bytes, BytesMut};

use super::frames::{EventKind, Frame};
use super::list::ListMetadata;
use super::malformed::Malformed;
use super::wire_format::WireFormat;

impl WireFormat {
    /// Returns an event of upstream's with its object as it is [held](Self::held).
    ///
    /// The event must have passed [`check_frame`](Self::check_frame).
    pub fn held_frame(&self, frame: Frame) -> Result<Frame, Malformed> {
        let has_object = !matches!(frame.kind, EventKind::Bookmark | EventKind::Error);
        if self.managed_fields().are_kept() || !has_object {
            return Ok(frame);
        }
        let object = self.held(&frame.object)?;
        Ok(if object.len() == frame.object.len() {
            frame
        } else {
            self.frame(frame.kind, &object)
        })
    }

    /// Returns a list of upstream's with its objects as they are [held](Self::held).
    pub fn held_list(&self, body: &Bytes) -> Result<Bytes, Malformed> {
        if self.managed_fields().are_kept() {
            return Ok(body.clone());
        }
        let page = self.read_list(body)?;
        let mut items = BytesMut::new();
        for object in &page.objects {
            self.put_item(&self.item_bytes(object), &mut items);
        }
        items.truncate(items.len().saturating_sub(self.separator()));
        let metadata = ListMetadata {
            continue_token: page.continue_token.as_deref(),
            remaining: page.remaining,
            ..ListMetadata::of(page.version)
        };
        let parts = self.list_parts(&metadata, page.objects.len(), items.len() as u64);
        Ok([&parts.head[..], &items, &parts.tail].concat().into())
    }
}
