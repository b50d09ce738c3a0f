//! Parses the parameters of the attribute.
//!
//! See `conflicts` for parameters that contradict each other, and `arguments` for the list itself.

use proc_macro2::{Ident, TokenStream};
use syn::{Expr, ExprPath, LitBool, LitInt, LitStr, Path};

use super::scope::ScopeSource;
use super::{VOCABULARY, conflicts, values};
use crate::arguments::duration::Time;
use crate::arguments::{self, values as shared};
use crate::report::Report;

/// The parameters of one attribute.
pub(crate) struct IdempotentArgs {
    pub(crate) key: Expr,
    pub(crate) options: RecordOptions,
}

/// The optional parameters.
#[derive(Default)]
pub(crate) struct RecordOptions {
    pub(crate) scope: Option<ScopeSource>,
    pub(crate) ttl: Option<Time>,
    pub(crate) lease: Option<Time>,
    pub(crate) fingerprint: Option<Fingerprint>,
    pub(crate) on_duplicate: OnDuplicate,
    pub(crate) on_crash: Option<(OnCrash, proc_macro2::Span)>,
    pub(crate) on_error: OnError,
    pub(crate) on_unavailable: Otherwise,
    pub(crate) on_missing: Otherwise,
    pub(crate) record: Option<Ident>,
    pub(crate) detached: Option<LitBool>,
    pub(crate) version: Option<LitInt>,
    pub(crate) result_type: Option<LitStr>,
    pub(crate) manager: Option<Expr>,
    pub(crate) namespace: Option<Expr>,
    pub(crate) name: Option<Expr>,
    pub(crate) runtime: Option<Path>,
}

impl RecordOptions {
    /// Returns `true` if the body runs on its own task.
    pub(crate) fn is_detached(&self) -> bool {
        self.detached.as_ref().is_none_or(|detached| detached.value)
    }
}

/// The values that two calls of one key must have in common.
pub(crate) enum Fingerprint {
    /// Nothing but the key.
    None,
    /// The value of an expression.
    Of(Box<Expr>),
}

/// The outcome of a call while another call of its key runs.
#[derive(Default)]
pub(crate) enum OnDuplicate {
    #[default]
    Error,
    Wait(Time),
    Skip,
}

/// The outcome of a call if an earlier call of its key crashed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum OnCrash {
    Fail,
    Rerun,
    Resume,
}

/// Whether an error of the body is stored.
#[derive(Default)]
pub(crate) enum OnError {
    #[default]
    Forget,
    Remember,
    RememberIf(ExprPath),
}

/// The outcome of a call that cannot be idempotent.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Otherwise {
    #[default]
    Error,
    Run,
}

impl IdempotentArgs {
    /// Parses the attribute's text. Every error goes to `report`. Returns `None` after an error
    /// that leaves no key.
    pub(crate) fn parse(tokens: TokenStream, report: &mut Report) -> Option<Self> {
        let mut key = None;
        let mut options = RecordOptions::default();
        arguments::parse(&VOCABULARY, tokens, report, |name, value| options.set(&mut key, name, value));
        conflicts::check(&options, report);
        Some(Self { key: key?, options })
    }
}

impl RecordOptions {
    /// Parses one parameter. Returns `false` if there is none of this name.
    fn set(&mut self, key: &mut Option<Expr>, name: &Ident, value: Expr) -> syn::Result<bool> {
        let words = &VOCABULARY;
        match name.to_string().as_str() {
            "key" => *key = Some(value),
            "scope" => {
                self.scope = Some(ScopeSource::Everyone); // a wrong scope is not a missing one
                self.scope = Some(ScopeSource::parse(&value)?);
            }
            "ttl" => self.ttl = Some(values::ttl(&value)?),
            "lease" => self.lease = Some(shared::lease(words, "lease", &value, "30s")?),
            "fingerprint" => self.fingerprint = Some(values::fingerprint(value)?),
            "on_duplicate" => self.on_duplicate = values::on_duplicate(&value)?,
            "on_crash" => self.on_crash = Some(values::on_crash(&value)?),
            "on_error" => self.on_error = values::on_error(&value)?,
            "on_unavailable" => self.on_unavailable = values::on_unavailable(&value)?,
            "on_missing" => self.on_missing = values::on_missing(&value)?,
            "record" => self.record = Some(shared::variable("record", &value, "its record", "record")?),
            "detached" => self.detached = Some(shared::boolean("detached", &value)?),
            "version" => self.version = Some(values::version(&value)?),
            "result_type" => self.result_type = Some(values::result_type(&value)?),
            "manager" => self.manager = Some(shared::manager(value)?),
            "namespace" => self.namespace = Some(shared::namespace(value)?),
            "name" => self.name = Some(shared::name(value)?),
            "crate" => self.runtime = Some(shared::runtime(value)?),
            _ => return Ok(false),
        }
        Ok(true)
    }
}
