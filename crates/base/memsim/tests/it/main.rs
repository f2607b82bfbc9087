//! Tests of the models.

mod traces;
