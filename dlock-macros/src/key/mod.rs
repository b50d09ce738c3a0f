//! Turns the pieces of a template into a chain of builder calls, and resolves their names.
//!
//! ```text
//! "order:<user_id>"  ->  .text("order:").part("user_id", &user_id)
//! ```
//!
//! See `template` for the grammar, `checks` for invalid combinations, and `key` of the runtime for
//! values.

mod checks;
mod template;
#[cfg(test)]
mod tests;

use std::ops::Range;

use proc_macro2::{Ident, Span, TokenStream, TokenTree};
use quote::{ToTokens, quote, quote_spanned};
use syn::ext::IdentExt;
use syn::spanned::Spanned;
use syn::{Error, Expr, ExprLit, Index, Lit, LitStr, Member};

use crate::arguments::names;
use crate::function::Function;
use crate::report::{Report, written};
use crate::runtime;
use crate::vocabulary::Vocabulary;
use template::{Modifier, Piece, Placeholder, Step};

/// Returns the template, if the value of the parameter `key` is one. Any other expression returns
/// the whole key.
pub(crate) fn template_of(source: &Expr) -> Option<&LitStr> {
    match source {
        Expr::Lit(ExprLit { lit: Lit::Str(template), .. }) => Some(template),
        _ => None,
    }
}

/// A key that fits its function.
pub(crate) enum Key {
    Template(Template),
    Expression {
        key: Expr,
        /// Whether it is the path of an item outside the function.
        constant: bool,
    },
}

impl Key {
    /// Parses `source` for `function`. Every error goes to `report`.
    pub(crate) fn parse(words: &Vocabulary, source: &Expr, function: &Function, report: &mut Report) -> Self {
        if let Some(template) = template_of(source) {
            return Self::Template(Template::parse(words, template, function, report));
        }
        report.check(checks::whole_key(words, source, function));
        Self::Expression { key: source.clone(), constant: function.is_constant(source) }
    }

    /// Returns the arguments that the key uses, or `None` if it is an expression, which may use
    /// any.
    pub(crate) fn used(&self) -> Option<&[Ident]> {
        match self {
            Self::Template(template) => Some(&template.used),
            Self::Expression { .. } => None,
        }
    }

    /// Returns the names of the arguments that the key uses as a whole.
    pub(crate) fn whole(&self) -> Vec<Ident> {
        match self {
            Self::Template(template) => template.whole.clone(),
            Self::Expression { key, .. } => named(key).into_iter().collect(),
        }
    }

    /// Returns the only value that differs between the keys of two calls, if there is one.
    pub(crate) fn single_value(&self, function: &Function) -> Option<String> {
        match self {
            Self::Template(template) => match template.places.as_slice() {
                [place] => Some(format!("<{place}>")),
                _ => None,
            },
            Self::Expression { key, .. } => {
                let root = root(key)?;
                function.name(&root.to_string()).map(|_| written(key))
            }
        }
    }

    /// Returns the span of errors about the key's type.
    pub(crate) fn span(&self) -> Span {
        match self {
            Self::Template(_) => Span::mixed_site(),
            Self::Expression { key, .. } => Span::mixed_site().located_at(key.span()),
        }
    }

    /// Returns an expression for the key. `builder` starts a template.
    pub(crate) fn tokens(&self, private: &TokenStream, builder: &TokenStream) -> TokenStream {
        let span = Span::mixed_site();
        match self {
            Self::Template(Template { chain, .. }) => quote_spanned!(span=> #builder #chain),
            Self::Expression { key, constant: true } => quote_spanned!(span=> #private::ConstantKey(&#key)),
            // A place is borrowed, so that the body can still use it.
            Self::Expression { key, .. } if is_place(key) => quote_spanned!(span=> &#key),
            Self::Expression { key, .. } => key.to_token_stream(),
        }
    }

    /// Returns a statement that warns about a word that may have been meant as a placeholder.
    pub(crate) fn question(&self, private: &TokenStream) -> Option<TokenStream> {
        let Self::Template(template) = self else { return None };
        template.questionable.map(|span| {
            let question = runtime::question(private, "warning_literal_argument", span);
            quote_spanned!(Span::mixed_site()=> #question();)
        })
    }
}

/// A template that fits its function.
pub(crate) struct Template {
    /// `.text(..).part(..)`, which follows a builder.
    chain: TokenStream,
    /// The names of arguments that the placeholders use.
    used: Vec<Ident>,
    /// The names of arguments that placeholders use as a whole, not only a field or a getter.
    whole: Vec<Ident>,
    /// The placeholders of arguments, as they are written.
    places: Vec<String>,
    /// The span of the literal if one of its words may have been meant as a placeholder.
    questionable: Option<Span>,
}

impl Template {
    /// Adds the pieces of another template at the end.
    pub(crate) fn append(&mut self, other: Self) {
        self.chain.extend(other.chain);
        self.used.extend(other.used);
        self.whole.extend(other.whole);
        self.places.extend(other.places);
    }

    /// Parses `literal` for `function`. Every error goes to `report`.
    pub(crate) fn parse(
        words: &Vocabulary,
        literal: &LitStr,
        function: &Function,
        report: &mut Report,
    ) -> Self {
        let source = Source(literal);
        let template = literal.value();
        let (pieces, problems) = template::parse(&template);
        let parsed = problems.is_empty();
        for problem in problems {
            report.push(Error::new(source.span(problem.at), problem.message));
        }

        let mut key = Self {
            chain: TokenStream::new(),
            used: Vec::new(),
            whole: Vec::new(),
            places: Vec::new(),
            questionable: None,
        };
        for piece in &pieces {
            match piece {
                Piece::Text(text) => key.chain.extend(quote!(.text(#text))),
                Piece::Placeholder(placeholder) => {
                    if let Some(call) = report.check(key.placeholder(placeholder, &source, function)) {
                        key.chain.extend(call);
                    }
                }
            }
        }
        // If the template has syntax errors, further checks would report follow-up errors.
        if parsed {
            let problem = checks::whole(words, &template, &pieces, &key.used, function);
            if let Some(message) = problem {
                report.push(Error::new(literal.span(), message));
            }
            let questionable = checks::is_questionable(&pieces, &key.used, function);
            key.questionable = questionable.then(|| literal.span());
            let mut found = checks::ambiguous(&pieces, function);
            if found.is_empty() {
                found = checks::run_on(&pieces, function);
            }
            for (at, message) in found {
                report.push(Error::new(source.span(at), message));
            }
        }
        key
    }

    fn placeholder(
        &mut self,
        placeholder: &Placeholder,
        source: &Source<'_>,
        function: &Function,
    ) -> syn::Result<TokenStream> {
        let inside = Span::call_site().located_at(source.span(placeholder.at.clone()));
        let argument = function.name(&placeholder.root);
        // An error about a bare name is shown at its declaration, and about a longer place at the
        // placeholder.
        let span = match (&argument, placeholder.steps.is_empty()) {
            (Some(name), true) => Span::mixed_site().located_at(name.span()),
            _ => inside,
        };
        let root = match argument {
            Some(name) => {
                refuse_headers(placeholder, &name, function)
                    .map_err(|problem| Error::new(source.span(placeholder.at.clone()), problem))?;
                let mut written = name.clone();
                if !placeholder.steps.is_empty() {
                    written.set_span(name.span().located_at(inside));
                }
                if placeholder.steps.is_empty() {
                    self.whole.push(name.clone());
                }
                self.places.push(placeholder.place.clone());
                self.used.push(name);
                quote!(#written)
            }
            None if is_constant(&placeholder.root) && misspelt(placeholder, function).is_none() => {
                respanned(&placeholder.root, inside)?
            }
            None => {
                return Err(Error::new(
                    source.span(placeholder.at.clone()),
                    no_such_argument(placeholder, function),
                ));
            }
        };

        let mut place = root;
        // Behind a borrow, a getter that consumes its owner is an error here, and not at the next
        // use in the body.
        if placeholder.steps.iter().any(|step| matches!(step, Step::Getter(_))) {
            place = quote_spanned!(span=> (&#place));
        }
        for step in &placeholder.steps {
            place = match step {
                Step::Field(name) => {
                    let name = identifier(name, span)?;
                    quote_spanned!(span=> #place.#name)
                }
                Step::Index(index) => {
                    let index = Member::Unnamed(Index { index: *index, span });
                    quote_spanned!(span=> #place.#index)
                }
                Step::Getter(name) => {
                    let name = identifier(name, span)?;
                    quote_spanned!(span=> #place.#name())
                }
            };
        }
        let method = match placeholder.modifier {
            Modifier::Plain => "part",
            Modifier::Hash => "hashed",
            Modifier::Opt => "optional",
            Modifier::Raw => "raw",
        };
        let method = Ident::new(method, span);
        let name = &placeholder.place;
        Ok(quote_spanned!(span=> .#method(#name, &#place)))
    }
}

/// The literal in the source, which maps positions in its text to spans.
struct Source<'a>(&'a LitStr);

impl Source<'_> {
    /// Returns the span of `at`: exact on nightly, and the whole literal on stable or if it has
    /// escapes.
    fn span(&self, at: Range<usize>) -> Span {
        let token = self.0.token();
        let plain = token.to_string() == format!("\"{}\"", self.0.value());
        let exact = if plain { token.subspan(at.start + 1..=at.end) } else { None };
        exact.unwrap_or_else(|| self.0.span())
    }
}

fn no_such_argument(placeholder: &Placeholder, function: &Function) -> String {
    let root = &placeholder.root;
    if root == "self" {
        return format!(
            "`<{}>` needs a method, and this function has no `self`; {}",
            placeholder.place,
            function.arguments()
        );
    }
    if let Some(meant) = misspelt(placeholder, function) {
        return format!(
            "`<{}>` names no argument of this function: did you mean `<{meant}>`; {}",
            placeholder.place,
            function.arguments()
        );
    }
    let names: Vec<String> = function.names().map(|name| name.unraw().to_string()).collect();
    let place = &placeholder.place;
    let near = names::nearest(root, names.iter().map(String::as_str)).map(|near| {
        let rest = place.strip_prefix(root.as_str()).unwrap_or_default();
        format!("{near}{rest}")
    });
    let near = near.or_else(|| {
        let Some(Step::Field(field)) = placeholder.steps.first() else { return None };
        // A field that is an argument, or that a pattern binds.
        function.name(field)?;
        place.split_once('.').map(|(_, bound)| bound.to_owned())
    });
    let can_be_field = near.is_none() && place != "Self";
    let is_bare = can_be_field && placeholder.steps.is_empty();
    let within = is_bare.then(|| function.place_of_field(place)).flatten();
    let within = within.or_else(|| {
        let is_method = can_be_field && function.receiver.is_some();
        is_method.then(|| format!("for a field of `self`, write `<self.{place}>`"))
    });
    let near = near.map_or_else(String::new, |near| format!(": did you mean `<{near}>`"));
    let within = within.map_or_else(String::new, |within| format!("; {within}"));
    format!("`<{place}>` names no argument of this function{near}; {}{within}", function.arguments())
}

/// Refuses an argument that is a collection of values, of which a key needs one.
fn refuse_headers(placeholder: &Placeholder, name: &Ident, function: &Function) -> Result<(), String> {
    let is_map = function.type_name(name).is_some_and(|of| of == "HeaderMap");
    if !is_map || !placeholder.steps.is_empty() {
        return Ok(());
    }
    Err(format!(
        "`<{name}>` is all headers, and a key needs one: write `key = request_key(&{name})` and a function that builds the key from it, as `dlock_runtime::docs::keys` shows"
    ))
}

/// Returns the placeholder that was probably meant: `<id>` for `<Id>`, and `<order.id>` for
/// `<order::id>`.
fn misspelt(placeholder: &Placeholder, function: &Function) -> Option<String> {
    let (first, path) = placeholder.root.split_once("::").unwrap_or((&placeholder.root, ""));
    let is_shouted = |name: &str| !name.contains(char::is_lowercase);
    if !path.is_empty() {
        let is_argument = function.name(first).is_some() && !path.split("::").last().is_some_and(is_shouted);
        return is_argument.then(|| placeholder.place.replace("::", "."));
    }
    let names = function.names().map(|name| name.unraw().to_string());
    let same = names.into_iter().find(|name| name.eq_ignore_ascii_case(first))?;
    // A name in capitals is a constant.
    (!is_shouted(first)).then(|| placeholder.place.replacen(first, &same, 1))
}

/// Returns `true` if a root that is not an argument can be a constant: a path, or a name with an
/// upper-case first letter.
pub(crate) fn is_constant(root: &str) -> bool {
    root != "Self" && (root.contains("::") || root.trim_start_matches('_').starts_with(char::is_uppercase))
}

fn identifier(name: &str, span: Span) -> syn::Result<Ident> {
    let ident = syn::parse_str::<Ident>(name).or_else(|_| syn::parse_str(&format!("r#{name}")));
    let mut ident = ident.map_err(|_| {
        Error::new(span, format!("`{name}` is not a name: write the name of a field or getter"))
    })?;
    ident.set_span(span);
    Ok(ident)
}

/// Parses a path and locates its tokens at `span`.
fn respanned(path: &str, span: Span) -> syn::Result<TokenStream> {
    let tokens: TokenStream = path
        .parse()
        .map_err(|_| Error::new(span, format!("`{path}` is not a path: write the path of a constant")))?;
    Ok(tokens
        .into_iter()
        .map(|mut token: TokenTree| {
            token.set_span(span);
            token
        })
        .collect())
}

/// Returns the name, if an expression is only a name, borrowed or not.
fn named(key: &Expr) -> Option<Ident> {
    match key {
        Expr::Path(path) => path.path.get_ident().cloned(),
        Expr::Group(group) => named(&group.expr),
        Expr::Paren(paren) => named(&paren.expr),
        Expr::Reference(reference) => named(&reference.expr),
        _ => None,
    }
}

/// Returns the name that an expression starts with, if it is a place or a getter of one.
fn root(key: &Expr) -> Option<Ident> {
    match key {
        Expr::Field(field) => root(&field.base),
        Expr::MethodCall(call) => root(&call.receiver),
        Expr::Reference(reference) => root(&reference.expr),
        Expr::Group(group) => root(&group.expr),
        Expr::Paren(paren) => root(&paren.expr),
        other => named(other),
    }
}

/// Returns `true` for an argument and its fields.
pub(crate) fn is_place(key: &Expr) -> bool {
    match key {
        Expr::Path(_) => true,
        Expr::Field(field) => is_place(&field.base),
        Expr::Group(group) => is_place(&group.expr),
        Expr::Paren(paren) => is_place(&paren.expr),
        _ => false,
    }
}
