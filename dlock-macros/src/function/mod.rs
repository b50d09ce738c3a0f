//! Parses the signature of the annotated function, and keeps its body as tokens.
//!
//! Parsing the body would report each of its syntax errors twice. See `body` for the generated
//! future.

pub(crate) mod body;
mod boxed;
pub(crate) mod output;
pub(crate) mod pattern;
#[cfg(test)]
mod tests;

use proc_macro2::{Delimiter, Group, Ident, Span, TokenStream, TokenTree};
use quote::{ToTokens, format_ident, quote};
use syn::ext::IdentExt;
use syn::parse::{ParseStream, Parser};
use syn::spanned::Spanned;
use syn::{Attribute, Error, Expr, FnArg, Pat, PatIdent, PathSegment, Signature, Token, Type, Visibility};

use crate::arguments::values::mentions;
use crate::report::written;
use crate::vocabulary::Vocabulary;
use boxed::BoxedFn;
use output::Output;

/// A function that an attribute can be written above.
pub(crate) struct Function {
    pub(crate) attributes: Vec<Attribute>,
    pub(crate) visibility: Visibility,
    pub(crate) default: Option<Ident>,
    /// The signature, in which each parameter is a plain name.
    pub(crate) signature: Signature,
    /// `self`, with the span that makes the body resolve it.
    pub(crate) receiver: Option<Ident>,
    pub(crate) parameters: Vec<Parameter>,
    pub(crate) output: Output,
    /// The code that `#[async_trait]` has put around the body.
    pub(crate) boxed: Option<TokenStream>,
    pub(crate) inner_attributes: Vec<Attribute>,
    pub(crate) body: Group,
}

/// A parameter other than `self`.
pub(crate) struct Parameter {
    /// The name of the whole argument.
    pub(crate) name: Ident,
    /// The pattern, if it was not a plain name.
    pub(crate) pattern: Option<Pat>,
    /// The `#[cfg(..)]` attributes of the parameter, which all uses of it need as well.
    pub(crate) conditions: Vec<Attribute>,
    /// Where the pattern takes the argument apart.
    pub(crate) taken_apart: Destructured,
    /// The `x` or `mut x` that rebinds it in the body if a pattern precedes it: the bindings of a
    /// pattern are dropped before all captured arguments, and later arguments before those.
    pub(crate) again: Option<TokenStream>,
}

/// Where the pattern of an argument takes it apart.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Destructured {
    /// Before the body, which then owns only the parts: an argument that is moved in whole and
    /// taken apart there would need its space twice.
    BeforeBody,
    /// At the start of the body: the parts that the pattern does not bind are dropped with the
    /// body.
    InBody,
    /// In the body as it is written.
    Already,
}

impl Function {
    /// Parses the item under the attribute.
    pub(crate) fn parse(words: &Vocabulary, item: TokenStream) -> syn::Result<Self> {
        (|input: ParseStream<'_>| Self::parse_stream(words, input)).parse2(item)
    }

    fn parse_stream(words: &Vocabulary, input: ParseStream<'_>) -> syn::Result<Self> {
        let attributes = input.call(Attribute::parse_outer)?;
        let visibility: Visibility = input.parse()?;
        refuse_other_items(words, input)?;
        let default = if input.fork().call(Ident::parse_any).is_ok_and(|word| word == "default") {
            Some(input.call(Ident::parse_any)?)
        } else {
            None
        };
        let mut signature: Signature = input.parse()?;
        let body: TokenStream = input.parse()?;
        let Some(body) = body.into_iter().next().and_then(block) else {
            let (purpose, attribute) = (words.nouns.purpose, words.attribute);
            return Err(Error::new(
                signature.ident.span(),
                format!(
                    "there is no body {purpose}: put `#[{attribute}(..)]` above the method in the `impl`, or give this one a default body"
                ),
            ));
        };

        let receiver = signature.receiver().map(|receiver| Ident::new("self", receiver.self_token.span()));
        let mut parameters = parameters(&mut signature);
        let (output, boxed, body) = if signature.asyncness.is_some() {
            (Output::of(&signature.output, signature.ident.span()), None, body)
        } else {
            let boxed = BoxedFn::parse(&signature, &body).ok_or_else(|| not_async(words, &signature))?;
            boxed::bind(&boxed.body, &mut parameters);
            let body = boxed::used(&boxed.body, &parameters);
            (Output::new(boxed.output.clone()), Some(boxed.before), body)
        };
        let (inner_attributes, body) = inner_attributes(body);
        Ok(Self {
            attributes,
            visibility,
            default,
            signature,
            receiver,
            parameters,
            output,
            boxed,
            inner_attributes,
            body,
        })
    }

    /// Returns the names that a key can use: `self`, parameters, and the names that their patterns
    /// bind.
    pub(crate) fn names(&self) -> impl Iterator<Item = Ident> + '_ {
        let bound = self.parameters.iter().flat_map(|parameter| match &parameter.pattern {
            Some(pattern) => pattern::names(pattern),
            None => vec![parameter.name.clone()],
        });
        self.receiver.iter().cloned().chain(bound)
    }

    /// Returns the declared form of a name that a key uses.
    pub(crate) fn name(&self, name: &str) -> Option<Ident> {
        let plain = name.strip_prefix("r#").unwrap_or(name);
        self.names().find(|declared| declared.unraw() == plain)
    }

    /// Returns `true` if an expression is the path of an item outside the function.
    pub(crate) fn is_constant(&self, value: &Expr) -> bool {
        let Expr::Path(path) = value else { return false };
        let first = path.path.segments.first().map(|first| first.ident.to_string());
        path.qself.is_none() && first.is_none_or(|first| self.name(&first).is_none())
    }

    /// Returns `true` if an expression is evaluated at each call: it uses `self` or an argument, or
    /// is neither a literal, nor a path, nor a call, which can be constant.
    pub(crate) fn varies(&self, value: &Expr) -> bool {
        !matches!(value, Expr::Lit(_) | Expr::Path(_) | Expr::Call(_))
            || self.names().any(|name| mentions(&value.to_token_stream(), &name.to_string()))
    }

    /// Refuses a variable of the body, given by the parameter `by`, that hides an argument.
    pub(crate) fn refuse_hidden(&self, by: &str, variable: &Ident, instead: &str) -> syn::Result<()> {
        if self.name(&variable.to_string()).is_none() {
            return Ok(());
        }
        Err(Error::new(
            variable.span(),
            format!(
                "`{by} = {variable}` would hide the argument `{variable}`: choose another name, such as `{by} = {instead}`"
            ),
        ))
    }

    /// Refuses `main`, which must install the manager first.
    pub(crate) fn refuse_main(&self, words: &Vocabulary) -> syn::Result<()> {
        let name = &self.signature.ident;
        if name != "main" {
            return Ok(());
        }
        let applied = words.nouns.applied;
        Err(Error::new(
            name.span(),
            format!(
                "`main` installs the lock manager, so it cannot be {applied} itself: write the attribute above an `async fn` that it calls after `dlock_runtime::init`"
            ),
        ))
    }

    /// Returns the parameters other than `self` with their types.
    fn types(&self) -> impl Iterator<Item = (&Parameter, &Type)> {
        let types = self.signature.inputs.iter().filter_map(|input| match input {
            FnArg::Typed(typed) => Some(&*typed.ty),
            FnArg::Receiver(_) => None,
        });
        self.parameters.iter().zip(types)
    }

    /// Returns the name of the type of an argument without its module, as it is written.
    pub(crate) fn type_name(&self, argument: &Ident) -> Option<String> {
        let (_, of) = self.types().find(|(parameter, _)| parameter.name == *argument)?;
        last_segment(of).map(|segment| segment.ident.to_string())
    }

    /// Returns what to write for a field of the first argument whose type may have fields, as a
    /// part of a message.
    pub(crate) fn place_of_field(&self, field: &str) -> Option<String> {
        self.types().find_map(|(parameter, of)| {
            let segment = last_segment(of)?;
            if WITHOUT_FIELDS.split(' ').any(|scalar| segment.ident == scalar) {
                return None;
            }
            let name = match &parameter.pattern {
                None => parameter.name.clone(),
                Some(pattern) => {
                    if let Some(path) = pattern::struct_of_fields(pattern) {
                        let path = written(path);
                        return Some(format!(
                            "for a field of `{path}`, bind it in the pattern, as in `{path} {{ {field}, .. }}`, and write `<{field}>`"
                        ));
                    }
                    match pattern::names(pattern).as_slice() {
                        [only] => only.clone(),
                        _ => return None,
                    }
                }
            };
            Some(format!("for a field of `{name}: {}`, write `<{name}.{field}>`", written(of)))
        })
    }

    /// Lists the arguments, as a part of a message.
    pub(crate) fn arguments(&self) -> String {
        let names: Vec<String> = self.names().map(|name| name.unraw().to_string()).collect();
        match names.as_slice() {
            [] if self.parameters.is_empty() => "it has no arguments".to_owned(),
            [] => "none of its arguments has a name".to_owned(),
            [only] => format!("its one argument is `{only}`"),
            several => format!("its arguments are {}", crate::report::list(several)),
        }
    }
}

/// Returns the last segment of a type's path, behind references.
fn last_segment(of: &Type) -> Option<&PathSegment> {
    match of {
        Type::Path(path) => path.path.segments.last(),
        Type::Reference(reference) => last_segment(&reference.elem),
        Type::Group(group) => last_segment(&group.elem),
        _ => None,
    }
}

/// Types whose values are parts of keys themselves, or have no named fields.
const WITHOUT_FIELDS: &str = "u8 u16 u32 u64 u128 usize i8 i16 i32 i64 i128 isize f32 f64 bool char str String Uuid \
    Option Vec State HeaderMap LockManager";

/// Makes every parameter a plain name, and returns the patterns.
fn parameters(signature: &mut Signature) -> Vec<Parameter> {
    let typed = signature.inputs.iter_mut().filter_map(|input| match input {
        FnArg::Typed(typed) => Some(typed),
        FnArg::Receiver(_) => None,
    });
    let mut behind_pattern = false;
    typed
        .enumerate()
        .map(|(index, typed)| {
            let conditions = typed.attrs.iter().filter(|attribute| attribute.path().is_ident("cfg"));
            let conditions: Vec<Attribute> = conditions.cloned().collect();
            if let Pat::Ident(PatIdent { by_ref: None, subpat: None, ident, mutability, .. }) =
                &mut *typed.pat
            {
                let again = behind_pattern.then(|| {
                    let mutability = mutability.take();
                    quote!(#mutability #ident)
                });
                let name = ident.clone();
                return Parameter {
                    name,
                    pattern: None,
                    conditions,
                    taken_apart: Destructured::InBody,
                    again,
                };
            }
            let name = argument(index);
            let plain = PatIdent {
                attrs: Vec::new(),
                by_ref: None,
                mutability: None,
                ident: name.clone(),
                subpat: None,
            };
            let pattern = std::mem::replace(&mut *typed.pat, Pat::Ident(plain));
            let again = behind_pattern.then(|| name.to_token_stream());
            let taken_apart = if !behind_pattern && pattern::takes_all(&pattern) {
                Destructured::BeforeBody
            } else {
                behind_pattern |= !pattern::names(&pattern).is_empty();
                Destructured::InBody
            };
            Parameter { name, pattern: Some(pattern), conditions, taken_apart, again }
        })
        .collect()
}

/// Returns the name of an argument whose parameter is a pattern.
fn argument(index: usize) -> Ident {
    format_ident!("__dlock_arg{}", index, span = Span::mixed_site())
}

fn refuse_other_items(words: &Vocabulary, input: ParseStream<'_>) -> syn::Result<()> {
    let others: [(bool, &str); 8] = [
        (input.peek(Token![struct]), "struct"),
        (input.peek(Token![enum]), "enum"),
        (input.peek(Token![impl]) || input.peek(Token![unsafe]) && input.peek2(Token![impl]), "impl"),
        (input.peek(Token![trait]) || input.peek(Token![unsafe]) && input.peek2(Token![trait]), "trait"),
        (input.peek(Token![mod]), "mod"),
        (input.peek(Token![static]), "static"),
        (input.peek(Token![type]), "type"),
        (input.peek(Token![use]), "use"),
    ];
    let Some((_, kind)) = others.into_iter().find(|(is, _)| *is) else { return Ok(()) };
    let article = if matches!(kind, "enum" | "impl") { "an" } else { "a" };
    let advice = match kind {
        "impl" | "trait" => format!("write it above each method that is {}", words.nouns.purpose),
        _ => "write it above an `async fn`".to_owned(),
    };
    Err(Error::new(
        input.span(),
        format!("`#[{}]` {}, and this is {article} `{kind}`: {advice}", words.attribute, words.nouns.acts),
    ))
}

fn not_async(words: &Vocabulary, signature: &Signature) -> Error {
    let name = signature.ident.unraw();
    let advice = if name == "main" {
        format!(
            "`main` installs the lock manager: {} an `async fn` that it calls after `dlock_runtime::init`",
            words.nouns.apply
        )
    } else if let Some(output) = boxed::future_output(&signature.output) {
        format!("write `async fn {name}(..) -> {}`", written(&output))
    } else {
        format!(
            "write `async fn {name}`; if an attribute above this one has removed the `async`, as `#[tokio::test]` does, write `#[{}(..)]` above it",
            words.attribute
        )
    };
    Error::new(signature.fn_token.span(), format!("{} needs an `async fn`: {advice}", words.nouns.call))
}

/// Unwraps a block from the invisible group that a `macro_rules!` variable leaves around it.
fn block(token: TokenTree) -> Option<Group> {
    match token {
        TokenTree::Group(group) if group.delimiter() == Delimiter::Brace => Some(group),
        TokenTree::Group(group) if group.delimiter() == Delimiter::None => {
            group.stream().into_iter().next().and_then(block)
        }
        _ => None,
    }
}

/// Splits off the `#![..]` at the start of a body, which are only allowed there.
fn inner_attributes(body: Group) -> (Vec<Attribute>, Group) {
    let split =
        |input: ParseStream<'_>| Ok((input.call(Attribute::parse_inner)?, input.parse::<TokenStream>()?));
    match split.parse2(body.stream()) {
        Ok((attributes, rest)) if !attributes.is_empty() => {
            let mut braces = Group::new(Delimiter::Brace, rest);
            braces.set_span(body.span());
            (attributes, braces)
        }
        _ => (Vec::new(), body),
    }
}
