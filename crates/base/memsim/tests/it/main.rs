//! Tests of the models.

mod caches;
mod controller;
mod foreign;
mod interference;
mod order;
mod recorded;
mod traces;
mod wear;
