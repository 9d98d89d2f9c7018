//! What every link must do, as one suite that runs unchanged over each of them.
//!
//! A [`Fabric`](fabric::Fabric) makes connected pairs of endpoints over one kind of link; the cases are generic over
//! it and know nothing else of the link. A link that is added is added here in one line.
//!
//! RDMA links (cargo feature `rdma`) need devices, which `RINGMAIL_RDMA_ADDRESSES` names: see `tests/verbs/main.rs`.

// That there is no device is for whoever reads the log.
#![cfg_attr(feature = "rdma", allow(clippy::print_stderr))]

mod delivery;
#[cfg(feature = "rdma")]
#[path = "../verbs/device.rs"]
mod device;
mod ending;
mod fabric;
mod hostile;
mod processes;
mod raw;
mod side;
mod space;
mod switching;
mod traffic;
#[cfg(feature = "rdma")]
mod verbs;
mod waking;

use std::time::Duration;

/// Longest that a case may take; all are far below it. With RDMA they run in an emulated machine.
const BOUND: Duration = Duration::from_secs(if cfg!(feature = "rdma") { 60 } else { 20 });

/// Runs a case with two threads, so that both sides can really be at work at once.
fn run(case: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.expect("a runtime");
    runtime.block_on(async {
        tokio::time::timeout(BOUND, case).await.expect("the case hangs");
    });
    runtime.shutdown_timeout(Duration::from_secs(5));
}

macro_rules! conformance {
    ($($(#[$attribute:meta])* $fabric:ident: $make:expr;)*) => {
        $(conformance!(@ $(#[$attribute])* $fabric $make =>
            delivery::frames_arrive_once_in_order_and_intact,
            delivery::frames_of_many_producers_arrive_once_and_in_each_ones_order,
            delivery::frames_of_every_length_around_a_block_arrive,
            delivery::abandoned_claims_leave_no_trace,
            delivery::commits_accumulate_while_the_flush_is_held,
            space::frames_released_in_any_order_keep_their_bytes,
            space::space_comes_back_only_in_order,
            space::lent_payloads_do_not_stop_the_ring,
            space::whoever_waits_for_space_is_woken_when_there_is_some,
            space::many_who_wait_for_space_all_get_some,
            space::a_blocked_flush_resumes_when_the_receiver_reads,
            space::both_sides_can_be_full_at_once,
            space::a_full_ring_leaves_room_for_control_frames,
            waking::no_wake_up_is_lost_in_a_hundred_thousand_turns,
            waking::no_wake_up_is_lost_when_both_send_at_random,
            waking::an_idle_connection_wakes_nobody,
            waking::a_frame_wakes_a_sleeper_once,
            ending::dropping_an_end_is_noticed_by_the_other,
            ending::failing_an_end_is_noticed_by_both,
            ending::what_was_sent_before_the_end_arrives,
            ending::whoever_waits_for_space_learns_of_the_end,
            ending::nothing_is_delivered_after_the_receiver_has_ended_the_connection,
            hostile::a_length_below_the_header_ends_the_connection,
            hostile::a_length_beyond_the_agreed_limit_ends_the_connection,
            hostile::an_unknown_kind_ends_the_connection,
            hostile::an_undefined_flag_ends_the_connection,
            hostile::a_frame_out_of_sequence_ends_the_connection,
            hostile::a_repeated_frame_ends_the_connection,
            hostile::an_acknowledgement_of_what_was_never_sent_ends_the_connection,
            hostile::an_acknowledgement_that_goes_back_ends_the_connection,
            hostile::a_damaged_header_ends_the_connection_when_checks_are_on,
            hostile::a_frame_beyond_what_was_announced_is_not_delivered,
            hostile::an_impossible_position_ends_the_connection,
            hostile::changes_after_the_announcement_cannot_move_a_frames_bounds,
            hostile::random_bytes_are_refused_or_delivered_and_never_worse,
        );)*
    };
    (@ $(#[$attribute:meta])* $fabric:ident $make:expr => $($module:ident::$case:ident,)*) => {
        $(#[$attribute])*
        mod $fabric {
            $(
                #[test]
                fn $case() {
                    let fabric = $make;
                    if crate::fabric::Fabric::is_there(&fabric) {
                        crate::run(crate::$module::$case(&fabric));
                    }
                }
            )*
        }
    };
}

conformance! {
    shm: crate::fabric::Bootstrapped::shm();
    tcp: crate::fabric::Bootstrapped::tcp();
    sim_with_immediates: crate::fabric::Simulated::with_immediates();
    sim_without_immediates: crate::fabric::Simulated::without_immediates();
    sim_with_faults: crate::fabric::Simulated::with_faults();
    switching_once: crate::switching::Restless::once(crate::switching::Simulation);
    switching_again_and_again: crate::switching::Restless::again_and_again(crate::switching::Simulation);
    #[cfg(feature = "rdma")]
    rdma_with_immediates: crate::verbs::Rdma::on_roce();
    #[cfg(feature = "rdma")]
    rdma_without_immediates: crate::verbs::Rdma::on_roce_without_immediates();
    #[cfg(feature = "rdma")]
    iwarp: crate::verbs::Rdma::on_iwarp();
    #[cfg(feature = "rdma")]
    rdma_with_tcp: crate::switching::Restless::again_and_again(crate::verbs::OverTcp::on_roce());
    #[cfg(feature = "rdma")]
    iwarp_with_tcp: crate::switching::Restless::again_and_again(crate::verbs::OverTcp::on_iwarp());
}
