//! Tells the source what this end makes of users and groups. Names are looked up one after the other by a worker, since that may go
//! over a network.

use super::*;

/// Questions that wait at most.
const MAX_QUESTIONS: usize = 16;

impl Sink {
    pub(super) fn asked_for_account(&mut self, sort: Sort, account: Account) -> Result<(), Fatal> {
        if self.stage != Stage::Running || !self.lists() {
            return Err(Fatal::protocol(
                "a question about a user or group before the destination was prepared",
            ));
        }
        self.answered += 1;
        if self.answered > MAX_ASKED || self.questions.len() >= MAX_QUESTIONS {
            return Err(Fatal::protocol("too many questions about users and groups"));
        }
        self.questions.push_back((sort, account));
        self.answer_next();
        Ok(())
    }
    pub(super) fn answer_next(&mut self) {
        if self.answering {
            return;
        }
        let Some((sort, account)) = self.questions.pop_front() else { return };
        self.answering = true;
        let extras = self.made.extras.clone();
        self.jobs.submit(Report::Died, move || Report::Account(extras.answer(sort, &account)));
    }
}
