//! Unit tests of `lane`.

use super::*;
