//! An announcement is taken once, with the words that belong to it.

use super::{AtomicU32, explore};
use crate::{TOKEN_WORDS, Token};
use loom::thread;
use std::sync::Arc;
use std::sync::atomic::Ordering::*;

/// Takes the announcement, and checks that its words belong together.
fn take(token: &Token) -> Option<u64> {
    let mut seen = [0; TOKEN_WORDS];
    let taken = token.take(|_, words| {
        seen = *words;
        true
    });
    taken.inspect(|state| assert_eq!(seen, [*state; TOKEN_WORDS], "words of another one"))
}

/// One thread announces, takes back and announces again, while two others take.
#[test]
fn each_announcement_is_taken_at_most_once() {
    explore(|| {
        let (token, taken) =
            (Arc::new(Token::default()), Arc::new([(); 2].map(|()| AtomicU32::new(0))));
        let takers = [(); 2].map(|()| {
            let (token, taken) = (token.clone(), taken.clone());
            thread::spawn(move || {
                if let Some(state) = take(&token) {
                    let before = taken[state as usize / 2 - 1].fetch_add(1, Relaxed);
                    assert_eq!(before, 0, "taken twice");
                }
            })
        });
        let mut ended = [false; 2];
        for (i, ended) in ended.iter_mut().enumerate() {
            let state = 2 * (i as u64 + 1);
            token.announce(state, &[state; TOKEN_WORDS]);
            *ended = token.end(state);
        }
        takers.into_iter().for_each(|taker| taker.join().unwrap());
        for (ended, taken) in ended.into_iter().zip(&*taken) {
            assert_eq!(u32::from(ended), taken.load(Relaxed), "the announcer learns of it");
        }
        assert_eq!(take(&token), None);
    });
}
