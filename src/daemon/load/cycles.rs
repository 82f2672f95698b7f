//! Finds cycles in a directed graph.

/// How many edges the search for all cycles follows in one strongly connected component. The number
/// of cycles can be exponential in the number of nodes, so the search must be bounded.
const EDGES_FOLLOWED_MAX: usize = 100_000;

/// Returns up to `limit` distinct cycles of a graph, sorted. Each cycle starts with its smallest
/// node. `successors[n]` are the nodes to which `n` has an edge. Unless `limit` is reached, the
/// result has at least one cycle of each strongly connected component that has cycles.
pub(super) fn find_cycles(successors: &[Vec<usize>], limit: usize) -> Vec<Vec<usize>> {
    let components = strongly_connected_components(successors);
    let mut cycles: Vec<Vec<usize>> = Vec::new();
    // A component is identified by one of its nodes, so both lists have an element for each node.
    let mut edge_budgets: Vec<usize> = vec![EDGES_FOLLOWED_MAX; successors.len()];
    let mut is_visited = vec![false; successors.len()];
    for start in 0..successors.len() {
        let component = components[start];
        let is_inside = |node: usize| components[node] == component && node >= start;
        if !successors[start].iter().any(|node| is_inside(*node)) {
            continue;
        }
        // The smallest node of a component always lies on a cycle, and breadth-first search finds
        // the shortest one in linear time. So each component has a cycle even if its budget ends.
        if !std::mem::replace(&mut is_visited[component], true) {
            cycles.extend(shortest_cycle(successors, start, &is_inside));
        }
        enumerate_cycles(
            successors,
            start,
            &is_inside,
            limit,
            &mut edge_budgets[component],
            &mut cycles,
        );
        if cycles.len() >= limit {
            break;
        }
    }
    cycles.truncate(limit);
    cycles.sort();
    cycles
}

/// Returns the shortest cycle through `start` and nodes for which `is_inside` holds (breadth-first
/// search).
fn shortest_cycle(
    successors: &[Vec<usize>],
    start: usize,
    is_inside: &dyn Fn(usize) -> bool,
) -> Option<Vec<usize>> {
    let mut predecessors: Vec<Option<usize>> = vec![None; successors.len()];
    let mut queue = std::collections::VecDeque::from([start]);
    while let Some(node) = queue.pop_front() {
        for successor in successors[node].iter().copied().filter(|successor| is_inside(*successor))
        {
            if successor == start {
                let mut cycle: Vec<usize> =
                    std::iter::successors(Some(node), |node| predecessors[*node]).collect();
                cycle.reverse();
                return Some(cycle);
            }
            if predecessors[successor].is_none() {
                predecessors[successor] = Some(node);
                queue.push_back(successor);
            }
        }
    }
    None
}

/// Adds the cycles through `start` and nodes for which `is_inside` holds (depth-first search),
/// until there are `limit` cycles or `edge_budget` is spent. Skips cycles that are in `cycles`
/// already.
fn enumerate_cycles(
    successors: &[Vec<usize>],
    start: usize,
    is_inside: &dyn Fn(usize) -> bool,
    limit: usize,
    edge_budget: &mut usize,
    cycles: &mut Vec<Vec<usize>>,
) {
    let mut path = vec![start];
    // For each node on the path, the index of the next edge to follow.
    let mut next_edges = vec![0];
    let mut is_on_path = vec![false; successors.len()];
    while let (Some(node), Some(next_edge)) = (path.last().copied(), next_edges.last_mut()) {
        if *edge_budget == 0 || cycles.len() >= limit {
            return;
        }
        let Some(successor) = successors[node].get(*next_edge).copied() else {
            path.pop();
            next_edges.pop();
            is_on_path[node] = false;
            continue;
        };
        *next_edge += 1;
        *edge_budget -= 1;
        if successor == start {
            if !cycles.contains(&path) {
                cycles.push(path.clone());
            }
        } else if is_inside(successor) && !is_on_path[successor] {
            is_on_path[successor] = true;
            path.push(successor);
            next_edges.push(0);
        }
    }
}

/// Returns the strongly connected component of each node, identified by one of its nodes (Tarjan's
/// algorithm, without recursion).
fn strongly_connected_components(successors: &[Vec<usize>]) -> Vec<usize> {
    const UNVISITED: usize = usize::MAX;
    let mut indexes = vec![UNVISITED; successors.len()];
    let mut low_links = vec![0; successors.len()];
    let mut components = vec![UNVISITED; successors.len()];
    let mut next_index = 0;
    let mut stack = Vec::new();
    for root in 0..successors.len() {
        if indexes[root] != UNVISITED {
            continue;
        }
        // The nodes whose visit has begun, each with the index of its next edge.
        let mut call_stack = vec![(root, 0)];
        while let Some((node, next_edge)) = call_stack.last_mut() {
            let node = *node;
            if *next_edge == 0 {
                indexes[node] = next_index;
                low_links[node] = next_index;
                next_index += 1;
                stack.push(node);
            }
            if let Some(successor) = successors[node].get(*next_edge).copied() {
                *next_edge += 1;
                if indexes[successor] == UNVISITED {
                    call_stack.push((successor, 0));
                } else if components[successor] == UNVISITED {
                    low_links[node] = low_links[node].min(indexes[successor]);
                }
                continue;
            }
            call_stack.pop();
            if let Some((parent, _)) = call_stack.last() {
                low_links[*parent] = low_links[*parent].min(low_links[node]);
            }
            if low_links[node] == indexes[node] {
                while let Some(member) = stack.pop() {
                    components[member] = node;
                    if member == node {
                        break;
                    }
                }
            }
        }
    }
    components
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
        for (successors, expected) in cases {
            let successors: Vec<Vec<usize>> =
                successors.iter().map(|nodes| nodes.to_vec()).collect();
            assert_eq!(find_cycles(&successors, 10), expected, "{successors:?}");
        }
    }

    #[test]
    fn the_search_is_bounded_if_the_number_of_cycles_is_exponential() {
        let complete: Vec<Vec<usize>> =
            (0..300).map(|node| (0..300).filter(|other| *other != node).collect()).collect();
        assert_eq!(find_cycles(&complete, 10).len(), 10);
    }

    #[test]
    fn one_long_cycle_is_found_completely() {
        let ring: Vec<Vec<usize>> = (0..1_000).map(|node| vec![(node + 1) % 1_000]).collect();
        assert_eq!(find_cycles(&ring, 10), [(0..1_000).collect::<Vec<usize>>()]);
    }
}
