//! Responses that arrive: at once, in fragments, or lent by the server.

use ringmail_transport::frame::{Flags, FrameError, Kind};
use ringmail_transport::rendezvous::{Fetch, Landed};
use ringmail_transport::ring::Incoming;

use super::connection::{Connection, Outcome, State};
use crate::error::too_large;
use crate::fragment::{Assembly, LARGE};

/// What a frame means for its call.
enum Step {
    /// Nothing.
    Ignored,
    /// More is to come; a part of it may have to be fetched.
    Assembling(Assembly, Option<Fetch>),
    Ended(Outcome),
}

impl Connection {
    /// Takes a frame of a response.
    pub(super) fn deliver_response(&self, frame: Incoming) -> Result<(), FrameError> {
        let header = *frame.header();
        let mut calls = self.calls.lock();
        let slot = calls.slots.get_mut(header.call.index as usize);
        let slot = slot.filter(|slot| {
            slot.generation == header.call.generation && !matches!(slot.state, State::Done(_))
        });
        let Some(slot) = slot else {
            // What comes for a call that has ended (given up, timed out) is dropped.
            drop(calls);
            return self.refuse_if_lent(&frame);
        };
        let (waker, assembly) = match std::mem::replace(&mut slot.state, State::Waiting(None)) {
            State::Waiting(waker) => (waker, None),
            State::Assembling(waker, assembly) => (waker, Some(assembly)),
            State::Done(_) => unreachable!("those were left out"),
        };
        let step = match self.step(frame, assembly) {
            Ok(step) => step,
            Err(error) => {
                // Whoever waits is about to be told that the connection has ended.
                slot.state = State::Waiting(waker);
                return Err(error);
            }
        };
        match step {
            Step::Ignored => slot.state = State::Waiting(waker),
            Step::Assembling(assembly, fetch) => {
                slot.state = State::Assembling(waker, assembly);
                drop(calls);
                if let Some(fetch) = fetch {
                    self.endpoint.begin_fetch(fetch);
                }
            }
            Step::Ended(outcome) => {
                slot.state = State::Done(outcome);
                drop(calls);
                if let Some(waker) = waker {
                    waker.wake();
                }
            }
        }
        Ok(())
    }

    fn step(&self, frame: Incoming, assembly: Option<Assembly>) -> Result<Step, FrameError> {
        let flags = frame.header().flags;
        match (frame.header().kind, assembly) {
            (Kind::Fragment, Some(mut assembly)) => Ok(if assembly.add(&frame)? {
                Step::Ended(Ok(assembly.finish()))
            } else {
                Step::Assembling(assembly, None)
            }),
            // The rest of a response that was refused.
            (Kind::Fragment, None) => Ok(Step::Ignored),
            (_, Some(assembly)) if assembly.is_being_fetched() => {
                Err(FrameError::BadRendezvous { rule: "another response to a call that is being read" })
            }
            _ if flags.intersects(LARGE) => match Assembly::begin(&frame, self.max_message_bytes) {
                Ok(mut assembly) if !assembly.is_whole() => {
                    let fetch = assembly.fetch(&self.endpoint)?;
                    Ok(Step::Assembling(assembly, fetch))
                }
                Ok(assembly) => Ok(Step::Ended(Ok(assembly.finish()))),
                Err(Ok(total)) => {
                    self.refuse_if_lent(&frame)?;
                    let whose = "of the client (max_message_size)";
                    Ok(Step::Ended(Err(too_large("response", total, self.max_message_bytes, whose))))
                }
                Err(Err(error)) => Err(error),
            },
            _ => Ok(Step::Ended(Ok(frame))),
        }
    }

    /// What is lent is answered for, whatever becomes of it.
    fn refuse_if_lent(&self, frame: &Incoming) -> Result<(), FrameError> {
        if frame.header().flags.contains(Flags::LENT) {
            return self.endpoint.refuse_fetch(frame.header().call);
        }
        Ok(())
    }

    /// What the server has lent was read, or could not be.
    pub(super) fn land(&self, Landed { call, message }: Landed) {
        let mut calls = self.calls.lock();
        // Not there any more: the call was given up.
        let slot = calls.slots.get_mut(call.index as usize);
        let Some(slot) = slot.filter(|slot| slot.generation == call.generation) else { return };
        match std::mem::replace(&mut slot.state, State::Waiting(None)) {
            State::Assembling(waker, assembly) if assembly.is_being_fetched() => {
                match assembly.landed(message) {
                    Ok(frame) => {
                        slot.state = State::Done(Ok(frame));
                        drop(calls);
                        if let Some(waker) = waker {
                            waker.wake();
                        }
                    }
                    Err(assembly) => slot.state = State::Assembling(waker, assembly),
                }
            }
            other => slot.state = other,
        }
    }
}
