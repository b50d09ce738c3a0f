//! The future is `Send` exactly if that of the plain function is: each pair is refused or accepted.

use std::cell::Cell;
use std::rc::Rc;

use dlock_runtime::{Error, distributed_lock};

macro_rules! twins {
    ($(async fn $name:ident($($pattern:pat, $type:ty),*) $body:block)*) => {
        mod annotated {
            use super::*;
            $(
                #[distributed_lock(key = "a")]
                pub async fn $name($($pattern: $type),*) -> Result<(), Error> $body
            )*
        }
        mod plain {
            use super::*;
            $(pub async fn $name($($pattern: $type),*) -> Result<(), Error> $body)*
        }
    };
}

twins! {
    async fn across_an_await() {
        let local = Rc::new(7);
        std::future::ready(()).await;
        drop(local);
        Ok(())
    }

    async fn an_argument(id, Rc<str>) {
        std::future::ready(()).await;
        drop(id);
        Ok(())
    }

    async fn a_borrow(cell, &Cell<u8>) {
        std::future::ready(()).await;
        cell.set(1);
        Ok(())
    }

    async fn gone_before_an_await() {
        drop(Rc::new(7));
        std::future::ready(()).await;
        Ok(())
    }

    async fn an_owned_cell(cell, Cell<u8>) {
        std::future::ready(()).await;
        cell.set(1);
        Ok(())
    }
}

fn is_send(_: impl Send) {}

fn main() {
    is_send(annotated::across_an_await());
    is_send(plain::across_an_await());

    is_send(annotated::an_argument("a".into()));
    is_send(plain::an_argument("a".into()));

    is_send(annotated::a_borrow(&Cell::new(1)));
    is_send(plain::a_borrow(&Cell::new(1)));

    is_send(annotated::gone_before_an_await());
    is_send(plain::gone_before_an_await());

    is_send(annotated::an_owned_cell(Cell::new(1)));
    is_send(plain::an_owned_cell(Cell::new(1)));
}
