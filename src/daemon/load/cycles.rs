//! Finds cycles in a directed graph.

/// How many edges are followed to find more than one cycle in a strongly connected component: the
/// number of cycles can be exponential.
const EDGES_FOLLOWED_MAX: usize = 100_000;

/// Returns up to `limit` distinct cycles of a graph, each once, starting with its first node, in
/// order. `next[n]` are the successors of `n`. As far as `limit` allows, at least one cycle of each
/// strongly connected component is found.
pub(super) fn find_cycles(next: &[Vec<usize>], limit: usize) -> Vec<Vec<usize>> {
    let component = strongly_connected_components(next);
    let mut found: Vec<Vec<usize>> = Vec::new();
    let mut budget: Vec<usize> = vec![EDGES_FOLLOWED_MAX; next.len()];
    let mut is_started = vec![false; next.len()];
    for start in 0..next.len() {
        let own = component[start];
        let inside = |node: usize| component[node] == own && node >= start;
        if !next[start].iter().any(|node| inside(*node)) {
            continue;
        }
        // The first node of a component always lies on a cycle; the shortest one is found in linear
        // time.
        if !std::mem::replace(&mut is_started[own], true) {
            found.extend(shortest_cycle(next, start, &inside));
        }
        enumerate_cycles(next, start, &inside, limit, &mut budget[own], &mut found);
        if found.len() >= limit {
            break;
        }
    }
    found.truncate(limit);
    found.sort();
    found
}

/// Returns the shortest cycle through `start` by nodes that are `inside`.
fn shortest_cycle(
    next: &[Vec<usize>],
    start: usize,
    inside: &dyn Fn(usize) -> bool,
) -> Option<Vec<usize>> {
    let mut predecessors: Vec<Option<usize>> = vec![None; next.len()];
    let mut queue = std::collections::VecDeque::from([start]);
    while let Some(node) = queue.pop_front() {
        for to in next[node].iter().copied().filter(|to| inside(*to)) {
            if to == start {
                let mut cycle: Vec<usize> =
                    std::iter::successors(Some(node), |at| predecessors[*at]).collect();
                cycle.reverse();
                return Some(cycle);
            }
            if predecessors[to].is_none() {
                predecessors[to] = Some(node);
                queue.push_back(to);
            }
        }
    }
    None
}

/// Adds all cycles whose first node is `start`, depth first, until `budget` is used up.
fn enumerate_cycles(
    next: &[Vec<usize>],
    start: usize,
    inside: &dyn Fn(usize) -> bool,
    limit: usize,
    budget: &mut usize,
    found: &mut Vec<Vec<usize>>,
) {
    let mut path = vec![start];
    let mut edges = vec![0];
    let mut on_path = vec![false; next.len()];
    while let (Some(node), Some(edge)) = (path.last().copied(), edges.last_mut()) {
        if *budget == 0 || found.len() >= limit {
            return;
        }
        let Some(to) = next[node].get(*edge).copied() else {
            path.pop();
            edges.pop();
            on_path[node] = false;
            continue;
        };
        *edge += 1;
        *budget -= 1;
        if to == start {
            if !found.contains(&path) {
                found.push(path.clone());
            }
        } else if inside(to) && !on_path[to] {
            on_path[to] = true;
            path.push(to);
            edges.push(0);
        }
    }
}

/// Returns the strongly connected component of each node, named after one of its nodes (Tarjan's
/// algorithm, without recursion).
fn strongly_connected_components(next: &[Vec<usize>]) -> Vec<usize> {
    const NEW: usize = usize::MAX;
    let mut number = vec![NEW; next.len()];
    let mut low = vec![0; next.len()];
    let mut component = vec![NEW; next.len()];
    let mut count = 0;
    let mut stack = Vec::new();
    for root in 0..next.len() {
        if number[root] != NEW {
            continue;
        }
        let mut calls = vec![(root, 0)];
        while let Some((node, edge)) = calls.last_mut() {
            let node = *node;
            if *edge == 0 {
                number[node] = count;
                low[node] = count;
                count += 1;
                stack.push(node);
            }
            if let Some(to) = next[node].get(*edge).copied() {
                *edge += 1;
                if number[to] == NEW {
                    calls.push((to, 0));
                } else if component[to] == NEW {
                    low[node] = low[node].min(number[to]);
                }
                continue;
            }
            calls.pop();
            if let Some((parent, _)) = calls.last() {
                low[*parent] = low[*parent].min(low[node]);
            }
            if low[node] == number[node] {
                while let Some(member) = stack.pop() {
                    component[member] = node;
                    if member == node {
                        break;
                    }
                }
            }
        }
    }
    component
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cycle_is_found_once() {
        type Nodes = [&'static [usize]];
        let cases: [(&Nodes, &Nodes); 7] = [
            (&[&[], &[0], &[0, 1]], &[]),
            (&[&[1], &[0]], &[&[0, 1]]),
            (&[&[1], &[2], &[0], &[2]], &[&[0, 1, 2]]),
            (&[&[1, 2], &[0], &[0]], &[&[0, 1], &[0, 2]]),
            (&[&[1], &[2, 0], &[0, 1]], &[&[0, 1], &[0, 1, 2], &[1, 2]]),
            (&[&[1], &[0], &[3], &[4], &[2]], &[&[0, 1], &[2, 3, 4]]),
            (&[&[1], &[2], &[1], &[]], &[&[1, 2]]),
        ];
        for (next, expected) in cases {
            let next: Vec<Vec<usize>> = next.iter().map(|to| to.to_vec()).collect();
            assert_eq!(find_cycles(&next, 10), expected, "{next:?}");
        }
    }

    #[test]
    fn the_search_is_bounded_if_there_are_countless_cycles() {
        let complete: Vec<Vec<usize>> =
            (0..300).map(|own| (0..300).filter(|to| *to != own).collect()).collect();
        assert_eq!(find_cycles(&complete, 10).len(), 10);
    }

    #[test]
    fn one_long_cycle_is_found_completely() {
        let ring: Vec<Vec<usize>> = (0..1_000).map(|own| vec![(own + 1) % 1_000]).collect();
        assert_eq!(find_cycles(&ring, 10), [(0..1_000).collect::<Vec<usize>>()]);
    }
}
