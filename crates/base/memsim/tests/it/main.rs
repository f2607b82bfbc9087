//! Tests of the models.

mod caches;
mod order;
mod recorded;
mod traces;
