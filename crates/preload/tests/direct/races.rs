//! Another process cuts files off while we copy.
