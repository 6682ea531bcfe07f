//! Model checking of the ring and the wakeup over every interleaving of two threads: `RUSTFLAGS="--cfg loom" cargo
//! test --release -p longhaul-handover --test loom`.
#![cfg(loom)]

use longhaul_handover::{Receiver, Sender, Signal, Wakeup, ring};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

/// An eventfd, as the model knows things: raised or not.
#[derive(Default)]
struct Event {
    raised: Mutex<bool>,
    changed: Condvar,
}

impl Signal for Event {
    fn raise(&self) {
        *self.raised.lock().unwrap() = true;
        self.changed.notify_one();
    }
    fn clear(&self) {
        *self.raised.lock().unwrap() = false;
    }
}

impl Event {
    /// Sleeps until raised. Whoever nobody wakes sleeps for ever, which the model reports as a deadlock.
    fn wait(&self) {
        let mut raised = self.raised.lock().unwrap();
        while !*raised {
            raised = self.changed.wait(raised).unwrap();
        }
    }
}

/// Takes the next value, asleep while there is none.
fn next<T: Send>(from: &mut Receiver<T>, wakeup: &Wakeup<Event>) -> T {
    loop {
        if let Some(v) = from.pop() {
            return v;
        }
        wakeup.signal().wait();
        wakeup.acknowledge();
    }
}

#[test]
fn wrapping_ring_delivers_values_in_order() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(|| {
        let (mut tx, mut rx) = ring(2);
        let sender = thread::spawn(move || {
            for i in 0..3 {
                let mut v = Box::new(i);
                while let Err(back) = tx.push(v) {
                    v = back;
                    thread::yield_now();
                }
            }
        });
        for i in 0..3 {
            let got = loop {
                match rx.pop() {
                    Some(v) => break v,
                    None => thread::yield_now(),
                }
            };
            assert_eq!(*got, i);
        }
        sender.join().unwrap();
    });
}

#[test]
fn wakeup_is_never_lost() {
    loom::model(|| {
        let (mut tx, mut rx) = ring(2);
        let wakeup = Arc::new(Wakeup::new(Event::default()));
        let ringer = wakeup.clone();
        let sender = thread::spawn(move || {
            for i in 0..2 {
                assert!(tx.push(i).is_ok());
                ringer.notify();
            }
        });
        for i in 0..2 {
            assert_eq!(next(&mut rx, &wakeup), i);
        }
        sender.join().unwrap();
    });
}

#[test]
fn concurrent_notifications_are_both_seen() {
    loom::model(|| {
        let (mut tx1, mut rx1) = ring(1);
        let (mut tx2, mut rx2) = ring(1);
        let wakeup = Arc::new(Wakeup::new(Event::default()));
        let other = wakeup.clone();
        let sender = thread::spawn(move || {
            assert!(tx1.push(1).is_ok());
            other.notify();
        });
        let other = wakeup.clone();
        let sender2 = thread::spawn(move || {
            assert!(tx2.push(2).is_ok());
            other.notify();
        });
        let mut sum = 0;
        while sum < 3 {
            let got = rx1.pop().or_else(|| rx2.pop());
            match got {
                Some(v) => sum += v,
                None => {
                    wakeup.signal().wait();
                    wakeup.acknowledge();
                }
            }
        }
        sender.join().unwrap();
        sender2.join().unwrap();
    });
}

/// A buffer goes to the worker, is changed there, and comes back, twice; both sleep when they have nothing to do, and the
/// worker ends when the other end is gone.
#[test]
fn circulating_buffer_has_one_owner_at_a_time() {
    fn work(
        mut inbox: Receiver<Vec<u8>>,
        mut outbox: Sender<Vec<u8>>,
        mine: &Wakeup<Event>,
        theirs: &Wakeup<Event>,
    ) {
        loop {
            while let Some(mut b) = inbox.pop() {
                if b.is_empty() {
                    return;
                }
                b[0] += 1;
                assert!(outbox.push(b).is_ok());
                theirs.notify();
            }
            mine.signal().wait();
            mine.acknowledge();
        }
    }
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let (mut to, inbox) = ring(2);
        let (outbox, mut from) = ring(2);
        let (mine, theirs) =
            (Arc::new(Wakeup::new(Event::default())), Arc::new(Wakeup::new(Event::default())));
        let (m, t) = (mine.clone(), theirs.clone());
        let worker = thread::spawn(move || work(inbox, outbox, &t, &m));
        let mut buffer = vec![1];
        for round in 2..4 {
            assert!(to.push(buffer).is_ok());
            theirs.notify();
            buffer = next(&mut from, &mine);
            assert_eq!(buffer, [round]);
        }
        assert!(to.push(Vec::new()).is_ok());
        theirs.notify();
        worker.join().unwrap();
    });
}
