//! The rows of the matrix.

mod errors;
mod forms;
mod load;
mod tools;

use crate::matrix::Row;

/// All of them, cheapest first.
pub fn all() -> Vec<Row> {
    let mut rows = tools::rows();
    rows.extend(forms::rows());
    rows.extend(errors::rows());
    rows.extend(load::rows());
    rows
}
