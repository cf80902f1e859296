//! Search for how many of a ranking to take, by trial.

/// Number of counts that are tried at first, at even distances.
const TRIED: usize = 8;

/// Tries how many of `count` are best taken: at even distances, then nearer and nearer to the best.
/// Nothing costs what cannot be. None and all are tried in any case.
///
/// # Errors
/// If `cost` fails.
pub(crate) fn best_count<C: Ord, E>(
    count: usize,
    mut cost: impl FnMut(usize) -> Result<Option<C>, E>,
) -> Result<(), E> {
    let mut step = count.div_ceil(TRIED).max(1);
    let mut best: Option<(C, usize)> = None;
    let mut next: Vec<usize> = (0..count).step_by(step).chain([count]).collect();
    let mut tried = Vec::new();
    loop {
        for taken in next {
            if tried.contains(&taken) {
                continue;
            }
            tried.push(taken);
            let Some(cost) = cost(taken)? else { continue };
            if best.as_ref().is_none_or(|(least, _)| cost < *least) {
                best = Some((cost, taken));
            }
        }
        let Some((_, at)) = best.as_ref().filter(|_| step > 1) else { return Ok(()) };
        step = step.div_ceil(2);
        next = [at.saturating_sub(step), (at + step).min(count)].to_vec();
    }
}
