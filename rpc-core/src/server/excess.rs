//! Statuses with more to say than a frame holds.

use tonic::Status;
use tonic::metadata::MetadataMap;

use crate::metadata_block::Entries;

/// Bytes of the message that details and metadata may not crowd out.
const HEAD: usize = 512;

/// The status itself if what goes with its code fits `limit` bytes, a limit that `whose` describes; else as much of it as
/// fits, which says what is missing. Details are worth more than metadata, and the beginning of the message more than either.
pub(super) fn cut(status: Status, (limit, whose): (usize, &str)) -> Status {
    if Entries::status(&status).len() <= limit {
        return status;
    }
    let message = status.message();
    let has = (!status.details().is_empty(), !status.metadata().is_empty());
    for keeps in [(true, true), (true, false), (false, true), (false, false)] {
        let missing = match (has.0 && !keeps.0, has.1 && !keeps.1) {
            (false, false) => String::new(),
            (true, false) => format!(" (without its details of {} bytes", status.details().len()),
            (false, true) => " (without its metadata".to_owned(),
            (true, true) => {
                format!(" (without its details of {} bytes and its metadata", status.details().len())
            }
        };
        let missing = if missing.is_empty() {
            missing
        } else {
            format!("{missing}: a status has room for {limit} bytes, the limit {whose})")
        };
        let with = |message: String| {
            let details = if keeps.0 { status.details().to_vec() } else { Vec::new() };
            let metadata = if keeps.1 { status.metadata().clone() } else { MetadataMap::new() };
            Status::with_details_and_metadata(status.code(), message, details.into(), metadata)
        };
        let whole = with(format!("{message}{missing}"));
        if Entries::status(&whole).len() <= limit {
            return whole;
        }
        let end = format!("… (truncated from {} bytes){missing}", message.len());
        let room = limit.checked_sub(Entries::status(&with(end.clone())).len());
        if let Some(room) = room.filter(|room| *room >= HEAD.min(message.len())) {
            let at = (0..=room.min(message.len())).rev().find(|at| message.is_char_boundary(*at));
            return with(format!("{}{end}", &message[..at.unwrap_or(0)]));
        }
    }
    // Not with any ring that can be agreed on.
    Status::new(status.code(), "")
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;

    const LIMIT: (usize, &str) = (8_152, "of a test");

    fn status(message: usize, details: usize, metadata: usize) -> Status {
        let mut map = MetadataMap::new();
        if metadata > 0 {
            map.insert("k", "v".repeat(metadata).parse().unwrap());
        }
        // Two bytes each, so that half of the places are no boundaries.
        let message = "ü".repeat(message / 2);
        Status::with_details_and_metadata(Code::DataLoss, message, vec![7; details].into(), map)
    }

    #[test]
    fn what_fits_is_left_alone() {
        let whole = cut(status(4_000, 2_000, 2_000), LIMIT);
        assert_eq!((whole.message().len(), whole.details().len(), whole.metadata().len()), (4_000, 2_000, 1));
    }

    #[test]
    fn a_long_message_keeps_its_beginning_and_what_goes_with_it() {
        for details in 3_000..3_004 {
            let cut = cut(status(20_000, details, 1_000), LIMIT);
            assert_eq!((cut.code(), cut.details().len(), cut.metadata().len()), (Code::DataLoss, details, 1));
            let head = cut.message().strip_suffix("… (truncated from 20000 bytes)").expect("an end");
            assert!(head.chars().all(|char| char == 'ü'), "{head}");
            let length = Entries::status(&cut).len();
            assert!((LIMIT.0 - 1..=LIMIT.0).contains(&length), "{length}");
        }
    }

    #[test]
    fn what_is_dropped_is_named_and_the_rest_is_whole() {
        for (given, kept, says) in [
            (
                (100, 9_000, 0),
                (0, 0),
                &["without its details of 9000 bytes: a status", "8152 bytes, the limit of a test"],
            ),
            ((100, 9_000, 1_000), (0, 1), &["without its details of 9000 bytes:", "8152"]),
            ((100, 5_000, 5_000), (5_000, 0), &["without its metadata:", "8152"]),
            ((100, 9_000, 9_000), (0, 0), &["without its details of 9000 bytes and its metadata:", "8152"]),
            (
                (20_000, 8_000, 0),
                (0, 0),
                &["truncated from 20000 bytes", "without its details of 8000 bytes"],
            ),
        ] {
            let cut = cut(status(given.0, given.1, given.2), LIMIT);
            assert_eq!((cut.details().len(), cut.metadata().len()), kept, "{given:?}");
            assert!(says.iter().all(|said| cut.message().contains(said)), "{given:?}: {}", cut.message());
            assert!(cut.message().starts_with(&"ü".repeat(50)), "{given:?}: {}", cut.message());
            assert!(Entries::status(&cut).len() <= LIMIT.0, "{given:?}");
        }
    }
}
