//! `grpc-timeout`: how a call's deadline is given in metadata, and how it travels in a frame header.

use std::time::{Duration, Instant};

use tonic::metadata::MetadataMap;

/// Key that `tonic::Request::set_timeout` writes.
const KEY: &str = "grpc-timeout";

/// The time-out in a request's metadata, if there is a valid one: up to eight digits and a unit.
pub(crate) fn from_metadata(metadata: &MetadataMap) -> Option<Duration> {
    if metadata.is_empty() {
        return None;
    }
    let text = metadata.get(KEY)?.to_str().ok()?;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let value: u64 = digits.parse().ok()?;
    Some(match unit {
        "H" => Duration::from_secs(value * 3600),
        "M" => Duration::from_secs(value * 60),
        "S" => Duration::from_secs(value),
        "m" => Duration::from_millis(value),
        "u" => Duration::from_micros(value),
        "n" => Duration::from_nanos(value),
        _ => return None,
    })
}

/// What is left until `deadline`, in the header's microseconds: at least 1 while there is any. `None` when it is too
/// far away for the header (71 minutes): then only the caller enforces it.
pub(crate) fn to_header(deadline: Instant, now: Instant) -> Option<u32> {
    let left = deadline.saturating_duration_since(now);
    u32::try_from(left.as_micros()).ok().map(|micros| micros.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_and_limits() {
        let parse = |text: &str| {
            let mut map = MetadataMap::new();
            map.insert(KEY, text.parse().unwrap());
            from_metadata(&map)
        };
        assert_eq!(parse("3H"), Some(Duration::from_secs(10_800)));
        assert_eq!(parse("20m"), Some(Duration::from_millis(20)));
        assert_eq!(parse("99999999n"), Some(Duration::from_nanos(99_999_999)));
        for bad in ["", "m", "123456789S", "-1S", "1.5S", "1x", "ü"] {
            let mut map = MetadataMap::new();
            if let Ok(value) = bad.parse() {
                map.insert(KEY, value);
            }
            assert_eq!(from_metadata(&map), None, "{bad}");
        }
    }

    #[test]
    fn the_header_holds_an_hour_and_never_zero() {
        let now = Instant::now();
        assert_eq!(to_header(now, now), Some(1));
        assert_eq!(to_header(now + Duration::from_secs(60), now), Some(60_000_000));
        assert_eq!(to_header(now + Duration::from_secs(7200), now), None);
    }
}
