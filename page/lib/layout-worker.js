// Lays out a graph beside the page, so that the page can be used while a large one is computed.

import { Graph, layout } from '../vendor/dagre@3.1.3/dagre.esm.js';

/** @import { LayoutRequest, Layout } from './layout.js' */

/**
 * @param {LayoutRequest} request
 * @returns {Layout}
 */
function place({ nodes, edges, down }) {
  const graph = new Graph();
  graph.setGraph({ rankdir: down ? 'TB' : 'LR', nodesep: down ? 16 : 14, ranksep: down ? 30 : 34, edgesep: 10, marginx: 4, marginy: 4 });
  graph.setDefaultEdgeLabel(() => ({}));
  for (const { name, width, height } of nodes) graph.setNode(`n${name}`, { width, height });
  for (const { from, to } of edges) graph.setEdge(`n${from}`, `n${to}`);
  layout(graph);
  const { width = 0, height = 0 } = graph.graph();
  return {
    width,
    height,
    nodes: nodes.map(({ name, width, height }) => {
      const { x, y } = graph.node(`n${name}`);
      return { name, width, height, x: x - width / 2, y: y - height / 2 };
    }),
    edges: graph.edges().map((edge) => ({ from: edge.v.slice(1), to: edge.w.slice(1), points: graph.edge(edge).points.map(({ x, y }) => ({ x, y })) })),
  };
}

addEventListener('message', (event) => {
  const { id, request } = /** @type {{ id: number, request: LayoutRequest }} */ (event.data);
  try {
    postMessage({ id, layout: place(request) });
  } catch (error) {
    postMessage({ id, error: String(error) });
  }
});
