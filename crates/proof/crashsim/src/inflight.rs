//! Epochs in flight, and the orders in which hardware can make them durable (BPFS §4.4).
//!
//! - inflight-E1: a store joins the open epoch of its context. A fence ends that epoch. Flushes
//!   mean nothing, and a store past the cache is a store.
//! - inflight-E2: a store is durable only if all earlier epochs of its context are (§4.4, the key
//!   invariant). Within an epoch, stores persist as those that x86 has not flushed (persist-P2 and
//!   persist-P3).
//! - inflight-E3: an access to a line with stores of another context makes that epoch durable, and
//!   all earlier ones of that context (§4.4.1, the second corner case).
//! - inflight-E4: at most [`EPOCHS_MAX`] epochs are in flight. One more waits until the oldest is
//!   durable.
//!
//! So each context has one epoch of which a part is durable. All its earlier epochs are durable
//! then, and of later ones nothing is. An [`EpochCut`] names these epochs. States that lost an
//! epoch of the context that fences now were states of an earlier crash point, where fewer
//! operations were legal. Hence only the other contexts have a choice, and a trace of one context
//! has none (inflight-E1, inflight-E2).

/// Epochs in flight at most: entries of the hardware's table.
pub const EPOCHS_MAX: usize = 8;

/// An epoch with stores that are not durable.
#[derive(Clone, Copy, Debug)]
struct InFlight {
    id: u32,
    context: u8,
    is_open: bool,
}

/// The epochs that are not durable.
#[derive(Clone, Debug, Default)]
pub(crate) struct Epochs {
    /// In the order in which they began.
    in_flight: Vec<InFlight>,
    begun: u32,
}

/// The epoch of each context of which a part is durable. A context that is not listed has only
/// durable stores.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EpochCut(Vec<(u8, u32)>);

impl EpochCut {
    /// Returns the number of the epoch in which a context is cut.
    pub(crate) fn of(&self, context: u8) -> Option<u32> {
        self.0.iter().find(|(c, _)| *c == context).map(|(_, id)| *id)
    }
}

impl Epochs {
    /// Returns the epoch that a store of a context joins, and, by inflight-E4, the one that must be
    /// durable before.
    pub fn join(&mut self, context: u8) -> (u32, Option<u32>) {
        let open = self.in_flight.iter().find(|e| e.context == context && e.is_open);
        if let Some(open) = open {
            return (open.id, None);
        }
        let oldest = match self.in_flight.len() < EPOCHS_MAX {
            true => None,
            false => Some(self.in_flight.remove(0).id),
        };
        self.begun += 1;
        self.in_flight.push(InFlight { id: self.begun, context, is_open: true });
        (self.begun, oldest)
    }

    /// Ends the open epoch of a context.
    pub fn end(&mut self, context: u8) {
        let open = self.in_flight.iter_mut().find(|e| e.context == context && e.is_open);
        if let Some(open) = open {
            open.is_open = false;
        }
    }

    /// Removes the epochs of a context up to this one, which become durable; returns them.
    pub fn commit(&mut self, context: u8, last: u32) -> Vec<u32> {
        let goes = |e: &InFlight| e.context == context && e.id <= last;
        let gone = self.in_flight.iter().filter(|e| goes(e)).map(|e| e.id).collect();
        self.in_flight.retain(|e| !goes(e));
        gone
    }

    /// Returns the newest epoch of a context.
    pub fn newest(&self, context: u8) -> Option<u32> {
        self.in_flight.iter().rev().find(|e| e.context == context).map(|e| e.id)
    }

    /// Returns the cuts that are new if context `now` fences or returns: its newest epoch, with any
    /// epoch of each other context. The first cut has the newest epoch of all contexts.
    pub fn cuts(&self, now: Option<u8>) -> Vec<EpochCut> {
        let mut contexts: Vec<u8> = self.in_flight.iter().map(|e| e.context).collect();
        contexts.sort_unstable();
        contexts.dedup();
        let mut cuts = vec![EpochCut::default()];
        for context in contexts {
            let of = self.in_flight.iter().rev().filter(|e| e.context == context);
            let choices = if now.is_none_or(|now| now == context) { 1 } else { EPOCHS_MAX };
            let ids: Vec<u32> = of.map(|e| e.id).take(choices).collect();
            let with = |id: &u32| {
                let id = *id;
                cuts.iter().map(move |cut| EpochCut([cut.0.clone(), vec![(context, id)]].concat()))
            };
            cuts = ids.iter().flat_map(with).collect();
        }
        cuts
    }
}
