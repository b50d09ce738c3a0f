//! Unit tests of `record`.

use super::*;
