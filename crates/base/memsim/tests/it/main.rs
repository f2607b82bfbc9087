//! Tests of the models.

mod caches;
mod foreign;
mod order;
mod recorded;
mod traces;
mod wear;
