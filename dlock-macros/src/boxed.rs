//! What `#[async_trait]` leaves: a plain `fn` whose body ends in `Box::pin(async move { .. })`.
//!
//! ```text
//! fn name<'async_trait>(..) -> Pin<Box<dyn Future<Output = R> + Send + 'async_trait>> {
//!     Box::pin(async move { let Path(id) = __arg0; .. })
//! }             ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ the body that runs under the lock
//! ```
//!
//! Not here: a plain `async fn` (`function`).

use proc_macro2::{Delimiter, Group, Ident, TokenStream, TokenTree};
use quote::ToTokens;
use syn::parse::{ParseStream, Parser};
use syn::{GenericArgument, Pat, Path, PathArguments, ReturnType, Signature, Token, Type, TypeParamBound};

use crate::function::Parameter;

/// A boxed function, taken apart.
pub(crate) struct Whole {
    pub(crate) around: Boxed,
    pub(crate) body: Group,
    pub(crate) output: Type,
}

/// What stands around the body, to be put around it again.
pub(crate) struct Boxed {
    /// Everything before the parentheses: `Box::pin`, and statements before it.
    pub(crate) before: TokenStream,
}

impl Boxed {
    /// Takes the function apart, or gives `None` where it is none of this form.
    pub(crate) fn parse(signature: &Signature, body: &Group) -> Option<Whole> {
        let output = match &signature.output {
            ReturnType::Type(_, output) => awaited(output)?,
            ReturnType::Default => return None,
        };
        let mut before: Vec<TokenTree> = body.stream().into_iter().collect();
        let Some(TokenTree::Group(inside)) = before.pop() else { return None };
        let ends_in_box_pin = {
            let words: Vec<String> = before.iter().rev().take(4).map(ToString::to_string).collect();
            words == ["pin", ":", ":", "Box"]
        };
        let inside: Vec<TokenTree> = match inside.delimiter() {
            Delimiter::Parenthesis if ends_in_box_pin => inside.stream().into_iter().collect(),
            _ => return None,
        };
        match inside.as_slice() {
            [TokenTree::Ident(first), TokenTree::Ident(second), TokenTree::Group(body)]
                if first == "async" && second == "move" && body.delimiter() == Delimiter::Brace =>
            {
                Some(Whole {
                    around: Self { before: before.into_iter().collect() },
                    body: body.clone(),
                    output,
                })
            }
            _ => None,
        }
    }
}

/// Finds the patterns of parameters, which have become `let Path(id) = __arg0;` at the start of the body.
pub(crate) fn bind(body: &Group, parameters: &mut [Parameter]) {
    let binding = |input: ParseStream<'_>| {
        input.parse::<Token![let]>()?;
        let pattern = Pat::parse_single(input)?;
        input.parse::<Token![=]>()?;
        let name: Ident = input.parse()?;
        Ok((pattern, name))
    };
    let tokens: Vec<TokenTree> = body.stream().into_iter().collect();
    for statement in tokens.split(|token| matches!(token, TokenTree::Punct(end) if end.as_char() == ';')) {
        // async_trait begins with `if let Some(__ret) = None::<R> { return __ret; }`, which no `;` ends.
        let start =
            statement.iter().position(|token| matches!(token, TokenTree::Ident(word) if word == "let"));
        let tail =
            statement.iter().rposition(|token| matches!(token, TokenTree::Ident(word) if word == "let"));
        for from in [start, tail].into_iter().flatten() {
            let statement: TokenStream = statement.iter().skip(from).cloned().collect();
            let Ok((pattern, name)) = binding.parse2(statement) else { continue };
            let plain =
                matches!(&pattern, Pat::Ident(pattern) if pattern.subpat.is_none() && pattern.ident == name);
            if let Some(parameter) = parameters.iter_mut().find(|parameter| !plain && parameter.name == name)
            {
                parameter.pattern = Some(pattern);
                parameter.bound_in_body = true;
            }
        }
    }
}

/// Finds `R` in `Pin<Box<dyn Future<Output = R> + ..>>`.
fn awaited(output: &Type) -> Option<Type> {
    match output {
        Type::Group(group) => awaited(&group.elem),
        Type::Paren(paren) => awaited(&paren.elem),
        Type::Path(path) => arguments(&path.path)?.find_map(|argument| match argument {
            GenericArgument::Type(inner) => awaited(inner),
            _ => None,
        }),
        Type::TraitObject(object) => object.bounds.iter().find_map(|bound| match bound {
            TypeParamBound::Trait(bound) => arguments(&bound.path)?.find_map(|argument| match argument {
                GenericArgument::AssocType(output) if output.ident == "Output" => Some(output.ty.clone()),
                _ => None,
            }),
            _ => None,
        }),
        _ => None,
    }
}

fn arguments(path: &Path) -> Option<impl Iterator<Item = &GenericArgument>> {
    match &path.segments.last()?.arguments {
        PathArguments::AngleBracketed(arguments) => Some(arguments.args.iter()),
        _ => None,
    }
}

impl ToTokens for Boxed {
    fn to_tokens(&self, tokens: &mut TokenStream) {
        self.before.to_tokens(tokens);
    }
}
