//! The metadata block of a frame: what HTTP/2 would carry as headers and trailers.
//!
//! ```text
//!   u32 length of what follows
//!   entries: u16 key length, u32 value length, key, value
//! ```
//!
//! Values of keys that end in `-bin` travel as they are, not in base64. Keys that begin with a colon are the
//! protocol's own: [`MESSAGE`] and [`DETAILS`] of a status.

use ringmail_transport::frame::{FrameError, HEADER};
use tonic::metadata::{BinaryMetadataValue, KeyAndValueRef, MetadataKey, MetadataMap, MetadataValue};
use tonic::{Code, Status};

use crate::fragment;

/// Pseudo-key of a status message: UTF-8.
const MESSAGE: &[u8] = b":message";
/// Pseudo-key of status details: bytes.
const DETAILS: &[u8] = b":details";
/// Bytes of an entry besides key and value.
const ENTRY: usize = 6;
/// Bytes of the block's own length.
const LENGTH: usize = 4;
/// Largest block in bytes.
const LIMIT: usize = 16 * 1024;

/// The limit for blocks on a connection whose frames have at most `frame_limit` bytes, and whose limit it is: a block is
/// never split over frames.
pub(crate) fn limit(frame_limit: usize) -> (usize, &'static str) {
    let room = frame_limit.saturating_sub(HEADER + fragment::TOTAL);
    if room < LIMIT {
        (room, "of a connection with rings this small (a larger ring_size on both sides raises it)")
    } else {
        (LIMIT, "of the protocol")
    }
}

/// What a block will hold.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entries<'a> {
    metadata: Option<&'a MetadataMap>,
    status: Option<&'a Status>,
}

impl<'a> Entries<'a> {
    pub(crate) fn metadata(map: &'a MetadataMap) -> Self {
        Self { metadata: (!map.is_empty()).then_some(map), status: None }
    }

    pub(crate) fn status(status: &'a Status) -> Self {
        let metadata = (!status.metadata().is_empty()).then_some(status.metadata());
        let said = !status.message().is_empty() || !status.details().is_empty();
        Self { metadata, status: said.then_some(status) }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.metadata.is_none() && self.status.is_none()
    }

    /// Calls `entry` with each key and value. Keys that travel in the header are left out.
    fn each(&self, mut entry: impl FnMut(&[u8], &[u8])) {
        if let Some(status) = self.status {
            if !status.message().is_empty() {
                entry(MESSAGE, status.message().as_bytes());
            }
            if !status.details().is_empty() {
                entry(DETAILS, status.details());
            }
        }
        for item in self.metadata.iter().flat_map(|map| map.iter()) {
            match item {
                // The deadline travels in the frame header.
                KeyAndValueRef::Ascii(key, _) if key.as_str() == "grpc-timeout" => {}
                KeyAndValueRef::Ascii(key, value) => entry(key.as_str().as_bytes(), value.as_encoded_bytes()),
                KeyAndValueRef::Binary(key, value) => {
                    // A value that is not base64 cannot be made through the public interface.
                    let bytes = value.to_bytes().unwrap_or_default();
                    entry(key.as_str().as_bytes(), &bytes);
                }
            }
        }
    }

    /// Bytes of the block; 0 when there is none.
    pub(crate) fn len(&self) -> usize {
        if self.is_empty() {
            return 0;
        }
        let mut length = LENGTH;
        self.each(|key, value| length += ENTRY + key.len() + value.len());
        length
    }

    /// Writes the block into exactly [`Entries::len`] bytes.
    pub(crate) fn write(&self, block: &mut [u8]) {
        if self.is_empty() {
            return;
        }
        let length = (block.len() - LENGTH) as u32;
        block[..LENGTH].copy_from_slice(&length.to_le_bytes());
        let mut at = LENGTH;
        let mut put = |bytes: &[u8]| {
            block[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        };
        self.each(|key, value| {
            put(&(key.len() as u16).to_le_bytes());
            put(&(value.len() as u32).to_le_bytes());
            put(key);
            put(value);
        });
    }
}

/// A block that was read.
#[derive(Debug, Default)]
pub(crate) struct Block {
    pub(crate) metadata: MetadataMap,
    message: String,
    details: Vec<u8>,
}

impl Block {
    /// Reads the block at the start of `payload`; also returns its length.
    pub(crate) fn read(payload: &[u8]) -> Result<(Self, usize), FrameError> {
        let bad = |rule| FrameError::BadMetadata { rule };
        let (length, rest) = payload.split_first_chunk::<LENGTH>().ok_or(bad("its length is missing"))?;
        let length = u32::from_le_bytes(*length) as usize;
        if length > LIMIT {
            return Err(bad("it is longer than 16 KiB"));
        }
        let mut rest = rest.get(..length).ok_or(bad("it is longer than the frame"))?;
        let mut block = Self::default();
        while !rest.is_empty() {
            let (sizes, after) = rest.split_first_chunk::<ENTRY>().ok_or(bad("an entry is cut short"))?;
            let key = usize::from(u16::from_le_bytes([sizes[0], sizes[1]]));
            let value = u32::from_le_bytes([sizes[2], sizes[3], sizes[4], sizes[5]]) as usize;
            if after.len() < key || after.len() - key < value {
                return Err(bad("a key or value is cut short"));
            }
            let (key, after) = after.split_at(key);
            let (value, after) = after.split_at(value);
            block.insert(key, value)?;
            rest = after;
        }
        Ok((block, LENGTH + length))
    }

    fn insert(&mut self, key: &[u8], value: &[u8]) -> Result<(), FrameError> {
        let bad = |rule| FrameError::BadMetadata { rule };
        match key {
            MESSAGE => {
                self.message =
                    String::from_utf8(value.to_vec()).map_err(|_| bad("a status message is not UTF-8"))?;
            }
            DETAILS => self.details = value.to_vec(),
            key if key.ends_with(b"-bin") => {
                let key = MetadataKey::from_bytes(key).map_err(|_| bad("a key is not valid"))?;
                self.metadata.append_bin(key, BinaryMetadataValue::from_bytes(value));
            }
            key => {
                let key = MetadataKey::from_bytes(key).map_err(|_| bad("a key is not valid"))?;
                let value = MetadataValue::try_from(value).map_err(|_| bad("a value is not valid"))?;
                self.metadata.append(key, value);
            }
        }
        Ok(())
    }

    /// The status with this code and what the block says of it.
    pub(crate) fn into_status(self, code: Code) -> Status {
        Status::with_details_and_metadata(code, self.message, self.details.into(), self.metadata)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip(entries: Entries<'_>) -> Block {
        let mut bytes = vec![0; entries.len()];
        entries.write(&mut bytes);
        let (block, length) = Block::read(&bytes).unwrap();
        assert_eq!(length, bytes.len());
        block
    }

    #[test]
    fn metadata_survives_with_duplicates_and_binary_values() {
        let mut map = MetadataMap::new();
        map.append("a", "1".parse().unwrap());
        map.append("a", "2".parse().unwrap());
        map.append_bin("blob-bin", BinaryMetadataValue::from_bytes(&[0, 255, 7]));
        let back = round_trip(Entries::metadata(&map)).metadata;
        let values: Vec<_> =
            back.get_all("a").iter().map(|value| value.to_str().unwrap().to_owned()).collect();
        assert_eq!(values, ["1", "2"]);
        assert_eq!(back.get_bin("blob-bin").unwrap().to_bytes().unwrap().as_ref(), [0, 255, 7]);
    }

    #[test]
    fn a_status_survives_with_any_unicode_and_details() {
        let status = Status::with_details(Code::DataLoss, "\t\ntest \u{1F608} ü", vec![1, 2, 3].into());
        let back = round_trip(Entries::status(&status)).into_status(Code::DataLoss);
        assert_eq!(back.message(), status.message());
        assert_eq!(back.details(), status.details());
    }

    #[test]
    fn nothing_takes_no_room() {
        assert_eq!(Entries::metadata(&MetadataMap::new()).len(), 0);
        assert_eq!(Entries::status(&Status::new(Code::NotFound, "")).len(), 0);
    }

    #[test]
    fn malformed_blocks_are_refused_with_the_rule() {
        let rule = |bytes: &[u8]| Block::read(bytes).unwrap_err().to_string();
        assert!(rule(&[1, 0]).contains("length is missing"));
        assert!(rule(&[9, 0, 0, 0, 1]).contains("longer than the frame"));
        assert!(rule(&[0xff, 0xff, 0xff, 0xff]).contains("16 KiB"));
        assert!(rule(&[3, 0, 0, 0, 1, 0, 0]).contains("entry is cut short"));
        assert!(rule(&[7, 0, 0, 0, 9, 0, 0, 0, 0, 0, b'a']).contains("key or value"));
        assert!(rule(&[7, 0, 0, 0, 1, 0, 0, 0, 0, 0, b' ']).contains("key is not valid"));
    }
}
