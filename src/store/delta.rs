//! The difference between two byte strings that are much alike.
//!
//! A change of an object alters a few of its bytes. So the state before an event is held as what
//! turns the state after it into the one before: usually some hundred bytes instead of thousands.
use bytes::Bytes;

/// Bytes that are made from others, their base.
///
/// It is a sequence of instructions: a length and so many bytes to insert, then a length and a
/// place in the base to copy from. Numbers are varints (LEB128): seven bits a byte, the least
/// significant first.
#[derive(Debug)]
pub(super) struct Delta {
    instructions: Box<[u8]>,
    /// The length of the bytes it makes.
    length: usize,
}

/// Shortest part of the base that is worth copying, and the distance of the places at which parts
/// are looked for.
const BLOCK: usize = 16;

impl Delta {
    /// Returns the difference that makes `target` from `base`.
    pub(super) fn between(base: &[u8], target: &[u8]) -> Self {
        let mut writer = InstructionWriter::default();
        // Built at the first byte that differs.
        let mut blocks = None;
        let mut at = 0;
        while let Some(block) = target.get(at..at + BLOCK) {
            let beside = writer.behind_copied + (at - writer.written);
            let place = if base.get(beside..beside + BLOCK) == Some(block) {
                Some(beside)
            } else {
                let blocks = blocks.get_or_insert_with(|| BlockPlaces::new(base));
                blocks.find(base, block)
            };
            let Some(place) = place else {
                at += 1;
                continue;
            };
            let before = common_end(&base[..place], &target[writer.written..at]);
            let after = common_start(&base[place..], &target[at..]);
            at -= before;
            writer.insert(&target[writer.written..at]);
            writer.copy(place - before, before + after);
            at = writer.written;
        }
        writer.insert(&target[writer.written..]);
        Self {
            instructions: writer.out.into_boxed_slice(),
            length: target.len(),
        }
    }

    /// Returns the bytes, made from the base they were compared with.
    pub(super) fn apply(&self, base: &[u8]) -> Bytes {
        let mut out = Vec::with_capacity(self.length);
        let mut rest = &*self.instructions;
        let mut behind_copied = 0_usize;
        while !rest.is_empty() {
            let inserted = take_varint(&mut rest);
            let (bytes, next) = rest.split_at(inserted);
            out.extend_from_slice(bytes);
            rest = next;
            if rest.is_empty() {
                break;
            }
            let copied = take_varint(&mut rest);
            let place = behind_copied.wrapping_add(zigzag_decode(take_varint(&mut rest)));
            out.extend_from_slice(&base[place..place + copied]);
            behind_copied = place + copied;
        }
        out.into()
    }

    /// Returns the bytes it takes on the heap.
    pub(super) fn heap_size(&self) -> usize {
        self.instructions.len()
    }
}

#[derive(Default)]
struct InstructionWriter {
    out: Vec<u8>,
    /// Bytes of the target that the instructions make.
    written: usize,
    /// The place in the base behind the last copied part.
    behind_copied: usize,
}

impl InstructionWriter {
    fn insert(&mut self, bytes: &[u8]) {
        self.put_varint(bytes.len());
        self.out.extend_from_slice(bytes);
        self.written += bytes.len();
    }

    fn copy(&mut self, place: usize, length: usize) {
        self.put_varint(length);
        self.put_varint(zigzag_encode(place.wrapping_sub(self.behind_copied)));
        self.written += length;
        self.behind_copied = place + length;
    }

    fn put_varint(&mut self, mut number: usize) {
        while number >= 0x80 {
            self.out.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.out.push(number as u8);
    }
}

fn take_varint(rest: &mut &[u8]) -> usize {
    let (mut number, mut shift) = (0, 0);
    while let Some((byte, next)) = rest.split_first() {
        *rest = next;
        number |= usize::from(byte & 0x7f) << shift;
        shift += 7;
        if byte & 0x80 == 0 {
            break;
        }
    }
    number
}

/// Encodes a difference of two places as a number that is small if the difference is, whatever its
/// sign (zigzag coding, as in protobuf).
fn zigzag_encode(difference: usize) -> usize {
    let sign = (difference.cast_signed() >> (usize::BITS - 1)).cast_unsigned();
    (difference << 1) ^ sign
}

fn zigzag_decode(number: usize) -> usize {
    (number >> 1) ^ (number & 1).wrapping_neg()
}

/// The blocks of the base by their bytes.
struct BlockPlaces {
    /// The number of a block plus one, by the hash of its bytes; 0 for none.
    places: Box<[u32]>,
    shift: u32,
}

impl BlockPlaces {
    fn new(base: &[u8]) -> Self {
        let blocks = base.len() / BLOCK;
        // At least half of the places stay empty.
        let bits = (2 * blocks).next_power_of_two().ilog2().max(4);
        let mut index = Self {
            places: vec![0; 1 << bits].into_boxed_slice(),
            shift: u64::BITS - bits,
        };
        for (number, block) in base.chunks_exact(BLOCK).enumerate() {
            let place = index.place(block);
            index.places[place] = number as u32 + 1;
        }
        index
    }

    /// Returns a place in the base that has the bytes of `block`.
    fn find(&self, base: &[u8], block: &[u8]) -> Option<usize> {
        let number = self.places[self.place(block)].checked_sub(1)?;
        let place = number as usize * BLOCK;
        (&base[place..place + BLOCK] == block).then_some(place)
    }

    fn place(&self, block: &[u8]) -> usize {
        let (words, _) = block.as_chunks::<8>();
        let hash = words.iter().fold(0, |hash: u64, word| {
            (hash.rotate_left(29) ^ u64::from_le_bytes(*word)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
        });
        (hash >> self.shift) as usize
    }
}

/// Returns the number of bytes with which both begin.
fn common_start(one: &[u8], other: &[u8]) -> usize {
    // Eight at a time, as most of two states is alike.
    let (one_words, _) = one.as_chunks::<8>();
    let (other_words, _) = other.as_chunks::<8>();
    let words = one_words.iter().zip(other_words);
    let equal = 8 * words.take_while(|(one, other)| one == other).count();
    let rest = one[equal..].iter().zip(&other[equal..]);
    equal + rest.take_while(|(one, other)| one == other).count()
}

/// Returns the number of bytes with which both end.
fn common_end(one: &[u8], other: &[u8]) -> usize {
    let pairs = one.iter().rev().zip(other.iter().rev());
    pairs.take_while(|(one, other)| one == other).count()
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn is_restored(base: &[u8], target: &[u8]) -> usize {
        let delta = Delta::between(base, target);
        assert!(delta.apply(base) == target);
        delta.heap_size()
    }

    #[test]
    fn a_small_change_makes_a_small_difference() {
        let base = (0..4_400).map(|n: u32| (n * n / 7 % 251) as u8);
        let base: Vec<u8> = base.collect();
        let mut target = base.clone();
        target[100..106].copy_from_slice(b"123456");
        target.splice(2_000..2_010, *b"another length");
        target.drain(3_000..3_500);
        assert!(is_restored(&base, &target) < 100);
        assert!(
            is_restored(&target, &base) < 700,
            "what was cut out is held"
        );
        assert!(is_restored(&base, &base) < 10);
        assert!(is_restored(b"", &base) < base.len() + 10);
        assert!(is_restored(&base, b"") < 10);
    }

    #[test]
    fn parts_that_moved_are_found() {
        let base: Vec<u8> = (0..1_000_u32).flat_map(u32::to_le_bytes).collect();
        let target = [&base[2_000..], &base[..2_000]].concat();
        assert!(is_restored(&base, &target) < 100);
    }

    proptest! {
        #[test]
        fn every_target_is_restored(
            base in proptest::collection::vec(0..4_u8, 0..300),
            edits in proptest::collection::vec((0..300_usize, 0..40_usize, 0..40_usize), 0..6),
        ) {
            let mut target = base.clone();
            for (at, removed, inserted) in edits {
                let at = at.min(target.len());
                let end = (at + removed).min(target.len());
                target.splice(at..end, (0..inserted).map(|n| n as u8 % 5));
            }
            is_restored(&base, &target);
            is_restored(&target, &base);
        }
    }
}
