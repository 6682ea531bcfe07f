//! Packets on the wire, in order of arrival.

use base::Time;
use std::cmp::Ordering;
use std::collections::{BinaryHeap, VecDeque};

/// A queue of items by time of arrival, first in first out for equal times. Items in order cost a push and a pop
/// of a `VecDeque`; only those out of order go through a heap.
#[derive(Clone, Debug)]
pub(crate) struct InFlight<T> {
    in_order: VecDeque<Item<T>>,
    out_of_order: BinaryHeap<Item<T>>,
    next_number: u64,
}

#[derive(Clone, Debug)]
struct Item<T> {
    at: Time,
    number: u64,
    value: T,
}

impl<T> InFlight<T> {
    pub(crate) fn new() -> InFlight<T> {
        InFlight { in_order: VecDeque::new(), out_of_order: BinaryHeap::new(), next_number: 0 }
    }
    pub(crate) fn len(&self) -> usize {
        self.in_order.len() + self.out_of_order.len()
    }
    /// The earliest arrival.
    pub(crate) fn next(&self) -> Option<Time> {
        let (a, b) = (self.in_order.front().map(|i| i.at), self.out_of_order.peek().map(|i| i.at));
        a.into_iter().chain(b).min()
    }
    /// Adds an item. `late` says that items added next will probably arrive before it.
    pub(crate) fn push(&mut self, at: Time, late: bool, value: T) {
        let item = Item { at, number: self.next_number, value };
        self.next_number += 1;
        // A late item at the end of the queue would send all later ones through the heap.
        if late || self.in_order.back().is_some_and(|last| at < last.at) {
            self.out_of_order.push(item);
        } else {
            self.in_order.push_back(item);
        }
    }
    /// Removes the earliest item if it arrives by `now`.
    pub(crate) fn pop(&mut self, now: Time) -> Option<(Time, T)> {
        let from_heap = match (self.in_order.front(), self.out_of_order.peek()) {
            (Some(a), Some(b)) => b.key() < a.key(),
            (None, Some(_)) => true,
            _ => false,
        };
        if self.next().is_none_or(|at| at > now) {
            return None;
        }
        let item = if from_heap { self.out_of_order.pop() } else { self.in_order.pop_front() };
        item.map(|i| (i.at, i.value))
    }
}

impl<T> Item<T> {
    fn key(&self) -> (Time, u64) {
        (self.at, self.number)
    }
}
/// Reversed, because `BinaryHeap` returns the greatest first.
impl<T> Ord for Item<T> {
    fn cmp(&self, other: &Self) -> Ordering {
        other.key().cmp(&self.key())
    }
}
impl<T> PartialOrd for Item<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl<T> PartialEq for Item<T> {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}
impl<T> Eq for Item<T> {}
