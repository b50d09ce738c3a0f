//! The output of `#[async_trait]`: a plain `fn` whose body ends in `Box::pin(async move { .. })`.
//!
//! ```text
//! fn name<'async_trait>(..) -> Pin<Box<dyn Future<Output = R> + Send + 'async_trait>> {
//!     Box::pin(async move { let Path(id) = { .. __arg0 }; .. })
//! }             ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ the body that runs under the lock
//! ```
//!
//! See `function` for a plain `async fn`.

use proc_macro2::{Delimiter, Group, Span, TokenStream, TokenTree};
use quote::quote_spanned;
use syn::parse::Parser;
use syn::{GenericArgument, Pat, Path, PathArguments, ReturnType, Signature, Type, TypeParamBound};

use super::{Destructured, Parameter};

/// The parts of a boxed function.
pub(crate) struct BoxedFn {
    /// Everything before the parentheses: `Box::pin`, and statements before it.
    pub(crate) before: TokenStream,
    pub(crate) body: Group,
    pub(crate) output: Type,
}

impl BoxedFn {
    /// Takes the function apart, or returns `None` if it does not have this form.
    pub(crate) fn parse(signature: &Signature, body: &Group) -> Option<Self> {
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
                Some(Self { before: before.into_iter().collect(), body: body.clone(), output })
            }
            _ => None,
        }
    }
}

/// Finds the patterns of parameters.
///
/// `#[async_trait]` turns them into `let Path(id) = { let __arg0 = __arg0; __arg0 };` somewhere in
/// the body: `#[tracing::instrument]` puts blocks around it.
pub(crate) fn bind(body: &Group, parameters: &mut [Parameter]) {
    let tokens: Vec<TokenTree> = body.stream().into_iter().collect();
    for (at, token) in tokens.iter().enumerate() {
        match token {
            TokenTree::Group(inner) => bind(inner, parameters),
            TokenTree::Ident(word) if word == "let" => {
                let statement = tokens.iter().skip(at + 1).take_while(|token| !is_punct(token, ';'));
                let statement: Vec<&TokenTree> = statement.collect();
                bind_statement(&statement, parameters);
            }
            _ => {}
        }
    }
}

/// Parses `Path(id) = __arg0` and `Path(id) = { let __arg0 = __arg0; __arg0 }`.
fn bind_statement(statement: &[&TokenTree], parameters: &mut [Parameter]) {
    let Some((source, pattern)) = statement.split_last() else { return };
    let Some((_, pattern)) = pattern.split_last().filter(|(equals, _)| is_punct(equals, '=')) else { return };
    let name = match source {
        TokenTree::Ident(name) => name.clone(),
        TokenTree::Group(block) if block.delimiter() == Delimiter::Brace => {
            let inside: Vec<TokenTree> = block.stream().into_iter().collect();
            match inside.as_slice() {
                [TokenTree::Ident(word), TokenTree::Ident(name), .., TokenTree::Ident(value)]
                    if word == "let" && name == value =>
                {
                    name.clone()
                }
                _ => return,
            }
        }
        _ => return,
    };
    // Only names that async_trait generates: the body may have its own `let` for a parameter.
    if !name.to_string().starts_with("__arg") {
        return;
    }
    let Some(parameter) = parameters.iter_mut().find(|parameter| parameter.name == name) else { return };
    let pattern: TokenStream = pattern.iter().map(|token| (*token).clone()).collect();
    let Ok(pattern) = Pat::parse_single.parse2(pattern) else { return };
    if parameter.pattern.is_none() {
        parameter.pattern = Some(pattern);
        parameter.taken_apart = Destructured::Already;
    }
}

/// Returns the body with a use of each parameter after `let name = name;`, which `async_trait`
/// adds.
///
/// In a plain function, the key counts as a use, so there is no warning for a parameter that only
/// the key uses.
pub(crate) fn used(body: &Group, parameters: &[Parameter]) -> Group {
    let mut tokens: Vec<TokenTree> = Vec::new();
    for token in body.stream() {
        tokens.push(token);
        if let [.., before, TokenTree::Ident(name), equals, TokenTree::Ident(value), end] = tokens.as_slice()
            && matches!(before, TokenTree::Ident(word) if word == "let" || word == "mut")
            && is_punct(equals, '=')
            && is_punct(end, ';')
            && name == value
            && parameters.iter().any(|parameter| parameter.name == *name)
            && !name.to_string().starts_with('_')
        {
            tokens.extend(quote_spanned!(Span::mixed_site()=> let _ = &#name;));
        }
    }
    let mut used = Group::new(body.delimiter(), tokens.into_iter().collect());
    used.set_span(body.span());
    used
}

fn is_punct(token: &TokenTree, letter: char) -> bool {
    matches!(token, TokenTree::Punct(punct) if punct.as_char() == letter)
}

/// Returns `R` of `impl Future<Output = R>`.
pub(crate) fn future_output(output: &ReturnType) -> Option<Type> {
    match output {
        ReturnType::Type(_, output) => match &**output {
            Type::ImplTrait(unnamed) => unnamed.bounds.iter().find_map(output_of),
            _ => None,
        },
        ReturnType::Default => None,
    }
}

/// Returns `R` of `Pin<Box<dyn Future<Output = R> + ..>>`.
fn awaited(output: &Type) -> Option<Type> {
    match output {
        Type::Group(group) => awaited(&group.elem),
        Type::Paren(paren) => awaited(&paren.elem),
        Type::Path(path) => arguments(&path.path)?.find_map(|argument| match argument {
            GenericArgument::Type(inner) => awaited(inner),
            _ => None,
        }),
        Type::TraitObject(object) => object.bounds.iter().find_map(output_of),
        _ => None,
    }
}

fn output_of(bound: &TypeParamBound) -> Option<Type> {
    match bound {
        TypeParamBound::Trait(bound) => arguments(&bound.path)?.find_map(|argument| match argument {
            GenericArgument::AssocType(output) if output.ident == "Output" => Some(output.ty.clone()),
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

#[cfg(test)]
mod tests {
    use proc_macro2::Ident;
    use quote::quote;

    use super::*;

    #[test]
    fn a_binding_of_a_parameter_is_a_use_and_an_assignment_is_left_alone() {
        let parameter = |name| Parameter {
            name: Ident::new(name, Span::call_site()),
            pattern: None,
            conditions: Vec::new(),
            taken_apart: Destructured::InBody,
            again: None,
        };
        let others = quote!(let _c = _c; let d = d; let a = b; let a > a; let a = a, self.a = a; a = b;);
        let body = quote!(let mut a = a; let b = b; #others);

        let used = used(&Group::new(Delimiter::Brace, body), &["a", "b", "_c"].map(parameter));

        let wanted = quote!({
            let mut a = a;
            let _ = &a;
            let b = b;
            let _ = &b;
            #others
        });
        assert_eq!(used.to_string(), wanted.to_string());
    }
}
