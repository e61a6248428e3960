//! The bytes of a checkpoint, in a file or on their way to another replica: blocks, and a checksum
//! of all before it.
//!
//! | part | bytes |
//! |---|---|
//! | [`MAGIC`], with the number of the layout | 24 |
//! | the [header](CheckpointHeader), as JSON | a block |
//! | a bookmark of upstream's, if its form is known | a block, which may be empty |
//! | each object, as a list has it | a block |
//! | BLAKE3 of all this | 32 |
//!
//! A block is its length in four bytes, little-endian, and the bytes.

use std::io::{self, Read, Write};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use watershed_protocol::FormatRecord;

use crate::scope::key::ScopeKey;
use crate::upstream::Release;

/// The first bytes of a checkpoint. Other layouts have another number, and another
/// [media type](super::media).
pub(super) const MAGIC: &[u8; 24] = b"watershed checkpoint  2\n";
/// Limit of the header.
const MAX_HEADER: u32 = 1 << 20;
/// Limit of a block. API servers take no object of a tenth of it.
const MAX_BLOCK: u32 = 64 << 20;
/// Limit of the bookmark, which has hardly more than a version.
const MAX_BOOKMARK: u32 = 64 << 10;
/// Memory that is taken for a block before its bytes arrive.
const BLOCK_BUFFER: usize = 1 << 20;
/// Bytes that are read at a time. Blocks are slices of them, without a copy.
const READ_AT_ONCE: usize = 256 << 10;
/// Bytes that are hashed at a time. The hash of a few thousand bytes takes several times as long for
/// each of them.
const HASHED_AT_ONCE: usize = 64 << 10;

/// The facts about a scope that its objects do not tell.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct CheckpointHeader {
    /// The scope's key as text.
    pub(super) scope: String,
    /// Group and name of the type.
    pub(super) resource: (String, String),
    /// The [digest](super::cluster::ClusterIdentity) of the cluster's identity.
    pub(super) cluster: String,
    /// The addresses of upstream; none in what another replica gets.
    pub(super) upstream: Vec<String>,
    /// Seconds since the epoch.
    pub(super) saved: u64,
    /// The version of the state.
    pub(super) version: u64,
    /// The version of the last event before it, if it was known.
    pub(super) last_event: Option<u64>,
    pub(super) format: FormatRecord,
    pub(super) streams_initial_events: bool,
    /// Upstream's warnings with reads of the type.
    pub(super) warnings: Vec<String>,
    /// The release that printed the objects.
    pub(super) release: Release,
    /// The number of objects.
    pub(super) objects: u64,
    /// The objects are reduced to their metadata. Absent in earlier checkpoints.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) metadata_only: bool,
}

impl CheckpointHeader {
    /// Returns the part of objects that the checkpoint has.
    pub(super) fn part(&self) -> StoredPart {
        StoredPart::of_metadata(self.metadata_only)
    }
}

/// The part of objects that a checkpoint has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoredPart {
    /// Whole objects.
    Objects,
    /// Their metadata.
    Metadata,
}

impl StoredPart {
    /// Returns the part that a scope holds.
    pub(super) fn of(key: &ScopeKey) -> Self {
        Self::of_metadata(key.representation.metadata_only)
    }

    fn of_metadata(metadata_only: bool) -> Self {
        if metadata_only {
            Self::Metadata
        } else {
            Self::Objects
        }
    }
}

/// Reason why a file is not a checkpoint.
#[derive(Debug, thiserror::Error)]
pub(super) enum CheckpointFileError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("{0}")]
    Foreign(&'static str),
    #[error("it has another layout")]
    Layout,
    #[error("it is damaged: {0}")]
    Damaged(&'static str),
}

/// Writes a checkpoint, block by block.
pub(super) struct CheckpointWriter<W> {
    inner: W,
    checksum: Checksum,
    written: u64,
}

/// Reads a checkpoint, block by block. What it returns is to be trusted only after
/// [`CheckpointReader::end`].
pub(super) struct CheckpointReader<R> {
    inner: R,
    /// The checksum of everything before `read`.
    checksum: Checksum,
    /// The bytes that were read last.
    read: Bytes,
    /// The number of these that were taken.
    taken: usize,
}

/// The checksum of bytes that come piece by piece.
#[derive(Default)]
struct Checksum {
    hasher: blake3::Hasher,
    /// The last bytes, which are not hashed yet.
    waiting: Vec<u8>,
}

impl<W: Write> CheckpointWriter<W> {
    pub(super) fn begin(inner: W, header: &CheckpointHeader) -> io::Result<Self> {
        let mut writer = Self {
            inner,
            checksum: Checksum::default(),
            written: 0,
        };
        writer.put(MAGIC)?;
        writer.block(&serde_json::to_vec(header)?)?;
        Ok(writer)
    }

    /// Writes a block.
    pub(super) fn block(&mut self, bytes: &[u8]) -> io::Result<()> {
        let length = u32::try_from(bytes.len()).ok().filter(|n| *n <= MAX_BLOCK);
        let length = length.ok_or_else(|| io::Error::other("an object is too large"))?;
        self.put(&length.to_le_bytes())?;
        self.put(bytes)
    }

    /// Writes the checksum. Returns the writer and the number of bytes.
    pub(super) fn end(mut self) -> io::Result<(W, u64)> {
        let checksum = self.checksum.end();
        self.inner.write_all(checksum.as_bytes())?;
        Ok((self.inner, self.written + blake3::OUT_LEN as u64))
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.checksum.add(bytes);
        self.written += bytes.len() as u64;
        self.inner.write_all(bytes)
    }
}

impl CheckpointWriter<Vec<u8>> {
    /// Returns the number of bytes that were not taken yet.
    pub(super) fn waiting(&self) -> usize {
        self.inner.len()
    }

    /// Takes the bytes that were written since the last call.
    pub(super) fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.inner)
    }
}

impl<R: Read> CheckpointReader<R> {
    /// Reads the header.
    pub(super) fn begin(inner: R) -> Result<(Self, CheckpointHeader), CheckpointFileError> {
        let mut reader = Self {
            inner,
            checksum: Checksum::default(),
            read: Bytes::new(),
            taken: 0,
        };
        if reader.take(MAGIC.len())? != MAGIC[..] {
            return Err(CheckpointFileError::Layout);
        }
        let header = reader.block_up_to(MAX_HEADER)?;
        let header = serde_json::from_slice(&header)
            .map_err(|_| CheckpointFileError::Damaged("its header cannot be read"))?;
        Ok((reader, header))
    }

    /// Reads the block of the bookmark, which comes first.
    pub(super) fn bookmark(&mut self) -> Result<Bytes, CheckpointFileError> {
        self.block_up_to(MAX_BOOKMARK)
    }

    /// Reads a block. It may share its memory with others, and is to be copied by whoever keeps it.
    pub(super) fn block(&mut self) -> Result<Bytes, CheckpointFileError> {
        self.block_up_to(MAX_BLOCK)
    }

    /// Checks the checksum, and that nothing follows.
    pub(super) fn end(mut self) -> Result<(), CheckpointFileError> {
        self.drop_taken();
        let checksum = self.take(blake3::OUT_LEN)?;
        let computed = std::mem::take(&mut self.checksum).end();
        if computed.as_bytes()[..] != checksum {
            return Err(CheckpointFileError::Damaged("its checksum is wrong"));
        }
        match self.take(1) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(()),
            Err(error) => Err(error.into()),
            Ok(_) => Err(CheckpointFileError::Damaged("something follows")),
        }
    }

    fn block_up_to(&mut self, limit: u32) -> Result<Bytes, CheckpointFileError> {
        let mut length = [0; 4];
        length.copy_from_slice(&self.take(4)?);
        let length = u32::from_le_bytes(length);
        if length > limit {
            return Err(CheckpointFileError::Damaged("a length is wrong"));
        }
        Ok(self.take(length as usize)?)
    }

    /// Takes the next bytes.
    fn take(&mut self, length: usize) -> io::Result<Bytes> {
        if self.read.len() - self.taken < length {
            self.read_on(length)?;
        }
        let end = self.taken + length;
        let taken = self.read.slice(self.taken..end);
        self.taken = end;
        Ok(taken)
    }

    /// Drops what was taken, once it is in the checksum.
    fn drop_taken(&mut self) {
        let taken = self.read.split_to(std::mem::take(&mut self.taken));
        self.checksum.add(&taken);
    }

    /// Reads until there are at least so many bytes that were not taken.
    fn read_on(&mut self, length: usize) -> io::Result<()> {
        self.drop_taken();
        let rest = &self.read;
        let missing = (length - rest.len()).max(READ_AT_ONCE);
        // A length may be wrong, so most of a large block's memory is taken as its bytes arrive.
        let mut read = Vec::with_capacity(rest.len() + missing.min(BLOCK_BUFFER));
        read.extend_from_slice(rest);
        let mut inner = self.inner.by_ref().take(missing as u64);
        inner.read_to_end(&mut read)?;
        self.read = read.into();
        if self.read.len() < length {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(())
    }
}

impl Checksum {
    fn add(&mut self, mut bytes: &[u8]) {
        if !self.waiting.is_empty() {
            let missing = HASHED_AT_ONCE - self.waiting.len();
            let (first, rest) = bytes.split_at(missing.min(bytes.len()));
            self.waiting.extend_from_slice(first);
            if self.waiting.len() < HASHED_AT_ONCE {
                return;
            }
            self.hasher.update(&self.waiting);
            self.waiting.clear();
            bytes = rest;
        }
        // Large blocks are not copied.
        let (whole, rest) = bytes.split_at(bytes.len() - bytes.len() % HASHED_AT_ONCE);
        if !whole.is_empty() {
            self.hasher.update(whole);
        }
        self.waiting.extend_from_slice(rest);
    }

    fn end(mut self) -> blake3::Hash {
        self.hasher.update(&self.waiting);
        self.hasher.finalize()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use watershed_protocol::{Encoding, WireFormat};

    use super::*;

    fn header() -> CheckpointHeader {
        let list = b"{\"kind\":\"PodList\",\"apiVersion\":\"v1\",\
            \"metadata\":{\"resourceVersion\":\"7\"},\"items\":[]}\n";
        let (format, _) =
            WireFormat::learn(Encoding::Json, "Pod", &Bytes::from_static(list)).unwrap();
        CheckpointHeader {
            scope: "pods".to_owned(),
            resource: (String::new(), "pods".to_owned()),
            cluster: "uid".to_owned(),
            upstream: vec!["https://a:6443".to_owned()],
            saved: 1,
            version: 7,
            last_event: Some(6),
            format: format.record(),
            streams_initial_events: true,
            warnings: vec!["299 - \"old\"".to_owned()],
            release: serde_json::from_str(r#"{"gitVersion":"v1.37.1"}"#).unwrap(),
            objects: 2,
            metadata_only: false,
        }
    }

    fn written() -> Vec<u8> {
        file_of([&b"bookmark"[..], b"first", b""])
    }

    /// Returns a checkpoint with these blocks after its header.
    pub(in super::super) fn file_of(blocks: impl IntoIterator<Item = impl AsRef<[u8]>>) -> Vec<u8> {
        let mut writer = CheckpointWriter::begin(Vec::new(), &header()).unwrap();
        for block in blocks {
            writer.block(block.as_ref()).unwrap();
        }
        let (file, length) = writer.end().unwrap();
        assert_eq!(file.len() as u64, length);
        file
    }

    fn read(file: &[u8]) -> Result<(CheckpointHeader, Vec<Bytes>), CheckpointFileError> {
        let (mut reader, header) = CheckpointReader::begin(file)?;
        let blocks = [reader.block()?, reader.block()?, reader.block()?];
        reader.end()?;
        Ok((header, blocks.into()))
    }

    #[test]
    fn what_was_written_is_read() {
        let (found, blocks) = read(&written()).unwrap();
        assert_eq!(found, header());
        assert_eq!(blocks, [&b"bookmark"[..], b"first", b""]);
    }

    #[test]
    fn a_file_with_one_wrong_bit_is_refused() {
        let file = written();
        for at in 0..file.len() {
            let mut damaged = file.clone();
            damaged[at] ^= 1;
            assert!(read(&damaged).is_err(), "byte {at}");
        }
    }

    #[test]
    fn the_checksum_is_that_of_all_bytes() {
        let bytes: Vec<u8> = (0..5 * HASHED_AT_ONCE / 2)
            .map(|n| (n % 251) as u8)
            .collect();
        for piece in [1, 4096, HASHED_AT_ONCE, HASHED_AT_ONCE + 1, bytes.len()] {
            let mut checksum = Checksum::default();
            for part in bytes.chunks(piece) {
                checksum.add(part);
            }
            let held = checksum.waiting.capacity();
            assert!(held < 2 * HASHED_AT_ONCE, "{held} bytes are held");
            assert_eq!(
                checksum.end(),
                blake3::hash(&bytes),
                "{piece} bytes at a time"
            );
        }
    }

    #[test]
    fn a_cut_or_longer_file_is_refused() {
        let file = written();
        for length in 0..file.len() {
            assert!(read(&file[..length]).is_err(), "{length} bytes");
        }
        let longer = [&file[..], b"x"].concat();
        assert!(read(&longer).is_err());
    }

    #[test]
    fn a_length_beyond_the_limit_is_refused_and_one_beyond_the_file_is_a_cut() {
        let begun = |length: u32| {
            let mut file = MAGIC.to_vec();
            file.extend_from_slice(&length.to_le_bytes());
            file.extend_from_slice(&[0; 64]);
            CheckpointReader::begin(&file[..]).map(|_| ())
        };
        assert!(matches!(
            begun(MAX_HEADER + 1),
            Err(CheckpointFileError::Damaged("a length is wrong"))
        ));
        let cut = begun(MAX_HEADER);
        assert!(matches!(
            &cut,
            Err(CheckpointFileError::Io(error)) if error.kind() == io::ErrorKind::UnexpectedEof
        ));
    }

    #[test]
    fn what_is_taken_piece_by_piece_is_the_whole() {
        let mut writer = CheckpointWriter::begin(Vec::new(), &header()).unwrap();
        let mut whole = writer.take();
        for block in [&b"bookmark"[..], b"first", b""] {
            writer.block(block).unwrap();
            assert_eq!(writer.waiting(), block.len() + 4);
            whole.extend(writer.take());
        }
        whole.extend(writer.end().unwrap().0);
        assert_eq!(whole, written());
    }
}
