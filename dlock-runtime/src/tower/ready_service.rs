//! Takes the service that is ready out of a layer's service.

/// Returns the inner service, and leaves a clone of it.
///
/// The service that is ready must be the one that is called: the clone may not be.
pub(super) fn take_ready<S: Clone>(inner: &mut S) -> S {
    let next = inner.clone();
    std::mem::replace(inner, next)
}
