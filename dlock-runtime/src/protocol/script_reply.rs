//! [`ScriptReply`], what a script returns.

/// The reply of a script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ScriptReply {
    Nil,
    Int(i64),
    Bytes(Vec<u8>),
    Array(Vec<ScriptReply>),
}

#[cfg_attr(not(feature = "idempotent"), allow(dead_code, reason = "the other features use a part"))]
impl ScriptReply {
    /// Returns a reply with this text.
    pub(crate) fn text(text: &str) -> Self {
        Self::Bytes(text.as_bytes().to_vec())
    }

    pub(crate) fn as_int(&self) -> Option<i64> {
        if let Self::Int(number) = self { Some(*number) } else { None }
    }

    pub(crate) fn as_bytes(&self) -> Option<&[u8]> {
        if let Self::Bytes(bytes) = self { Some(bytes) } else { None }
    }

    pub(crate) fn as_text(&self) -> Option<&str> {
        std::str::from_utf8(self.as_bytes()?).ok()
    }

    pub(crate) fn as_array(&self) -> Option<&[Self]> {
        if let Self::Array(replies) = self { Some(replies) } else { None }
    }
}
