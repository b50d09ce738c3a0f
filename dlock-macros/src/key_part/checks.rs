//! The errors of `#[derive(KeyPart)]`, and its option: `#[key_part(crate = ::path)]`.
//!
//! The trait itself reports a field whose type is not a `KeyPart`.

use proc_macro2::Ident;
use syn::ext::IdentExt;
use syn::meta::ParseNestedMeta;
use syn::{Attribute, Error, Expr, Fields, ItemEnum, ItemUnion, Path};

use crate::arguments::{values, without_group};
use crate::report::Report;

/// Parses the path of the runtime, and reports all other options.
pub(crate) fn runtime(attributes: &[Attribute], report: &mut Report) -> Option<Path> {
    let mut runtime = None;
    for attribute in ours(attributes) {
        let read = attribute.parse_nested_meta(|option| {
            if !option.path.is_ident("crate") {
                return Err(unknown(&option));
            }
            let path = values::runtime(without_group(option.value()?.parse::<Expr>()?))?;
            match runtime.replace(path) {
                Some(_) => Err(option.error("`crate` is given twice: leave one out")),
                None => Ok(()),
            }
        });
        report.check(read);
    }
    runtime
}

/// Reports every `#[key_part(..)]` on a field.
pub(crate) fn options_of_fields(fields: &Fields, report: &mut Report) {
    for attribute in fields.iter().flat_map(|field| ours(&field.attrs)) {
        let skips = attribute.parse_nested_meta(|option| {
            if option.path.is_ident("skip") { Err(skipped(&option)) } else { Ok(()) }
        });
        report.push(skips.err().unwrap_or_else(|| {
            Error::new_spanned(
                attribute,
                "`#[key_part(..)]` has no options for a field: every field is written, in order; to use only some fields, write a placeholder for each, such as `<line.order>`",
            )
        }));
    }
}

fn ours(attributes: &[Attribute]) -> impl Iterator<Item = &Attribute> {
    attributes.iter().filter(|attribute| attribute.path().is_ident("key_part"))
}

fn unknown(option: &ParseNestedMeta<'_>) -> Error {
    let name =
        option.path.get_ident().map_or_else(|| "this".to_owned(), |name| format!("`{}`", name.unraw()));
    option.error(format!(
        "{name} is not an option of `#[key_part(..)]`, whose only option is for re-exports of the runtime: write `#[key_part(crate = crate::reexports::dlock)]`, or leave it out"
    ))
}

fn skipped(option: &ParseNestedMeta<'_>) -> Error {
    option.error(
        "a field cannot be skipped: two values that differ only in it would share ONE lock; to use only some fields, write a placeholder for each, such as `<line.order>`",
    )
}

/// Returns the error for an enum, with what to write.
pub(crate) fn an_enum(item: &ItemEnum) -> Error {
    let name = &item.ident;
    let example = item.variants.first().map_or_else(String::new, |variant| {
        let (name, text) = (&variant.ident, variant.ident.unraw().to_string().to_lowercase());
        match variant.fields {
            Fields::Unit => format!(", such as `Self::{name} => out.str(\"{text}\")`"),
            Fields::Named(_) => {
                format!(", such as `Self::{name} {{ .. }} => out.fields().field(\"kind\", \"{text}\")..`")
            }
            Fields::Unnamed(_) => {
                format!(", such as `Self::{name}(..) => out.fields().field(\"kind\", \"{text}\")..`")
            }
        }
    });
    Error::new(
        name.span(),
        format!(
            "`#[derive(KeyPart)]` is for structs, and this is an enum: with the names of its variants in keys, renaming one would let the old and the new processes of a deployment hold one lock at once; write `impl dlock_runtime::KeyPart for {name}` with a fixed text for each variant{example}: see `dlock_runtime::docs::keys`"
        ),
    )
}

/// Returns the error for a union, with what to write.
pub(crate) fn a_union(item: &ItemUnion) -> Error {
    let name = &item.ident;
    Error::new(
        name.span(),
        format!(
            "`#[derive(KeyPart)]` is for structs, and this is a union, whose current field is unknown: write `impl dlock_runtime::KeyPart for {name}`"
        ),
    )
}

/// Returns the error for a struct without values, with what to write.
pub(crate) fn nothing_to_write(name: &Ident) -> Error {
    Error::new(
        name.span(),
        format!(
            "`{name}` has no field to write, so its part of a key would be empty: add a field, or write text in the key instead, as in `key = \"{}:..\"`",
            name.unraw().to_string().to_lowercase()
        ),
    )
}
