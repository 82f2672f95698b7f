// Types of the part of dagre that the page uses. This file is the page's own: it is not in the manifest.
export class Graph {
  setGraph(label: Record<string, unknown>): this;
  setDefaultEdgeLabel(label: () => object): this;
  setNode(name: string, label: { width: number; height: number }): this;
  setEdge(from: string, to: string): this;
  node(name: string): { x: number; y: number };
  edge(edge: { v: string; w: string }): { points: { x: number; y: number }[] };
  edges(): { v: string; w: string }[];
  graph(): { width?: number; height?: number };
}
export function layout(graph: Graph): void;
