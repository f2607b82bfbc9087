//! Tests of the models.

mod recorded;
mod traces;
