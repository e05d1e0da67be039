//! The best node for one task at a time.
//!
//! The rule (spec 07 section 9): descend the preference tree, at each level into the branch with the fewest
//! tasks of the service among those that can still take one; in the leaf take the best-ranked node that
//! passes the filters; count the task; repeat. Better ranked is the node with fewer recent failures (once
//! they are many), then with fewer active tasks of the service, then with fewer at all, then with the lower
//! ID.
//!
//! Two structures follow that rule. [`Candidates::Flat`] serves groups without preferences and looks at as few
//! nodes as it can: nodes without the service come straight from the overall ranking. A [`Tree`] keeps one heap
//! per leaf. While a group is placed, a node's key changes only when it gets a task, and a node that once
//! refused keeps refusing; so each node is offered once, plus once per task it takes.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap};
use std::sync::Arc;

use super::nodes::{NodeIndex, Nodes, Rank};
use super::requirements::SpreadLabel;

/// A node's place in the order of preference for one service: lower is better.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    /// 0 below the threshold.
    failures: usize,
    of_service: u32,
    active: u32,
    id: Arc<str>,
    index: NodeIndex,
}

/// For whom nodes are ranked.
#[derive(Debug, Clone)]
pub struct Ranking {
    pub service: Arc<str>,
    /// Nodes with many recent failures of this service's version.
    pub faulty: HashMap<NodeIndex, usize>,
}

impl Ranking {
    fn key(&self, nodes: &Nodes, index: NodeIndex) -> Option<Key> {
        let (_, account) = nodes.known(index)?;
        Some(Key {
            failures: self.faulty.get(&index).copied().unwrap_or(0),
            of_service: nodes.of_service(&self.service, index),
            active: account.active(),
            id: Arc::clone(&account.id),
            index,
        })
    }
}

type Heap = BinaryHeap<Reverse<Key>>;

/// Offers nodes, best first. Whoever is offered one either takes it ([`Candidates::placed`]) or has refused
/// it for good.
#[derive(Debug)]
pub enum Candidates {
    Flat(Flat),
    Tree(Tree),
}

impl Candidates {
    pub fn new(ranking: Ranking, spread: &[SpreadLabel], nodes: &Nodes) -> Candidates {
        if spread.is_empty() {
            Candidates::Flat(Flat::new(ranking))
        } else {
            Candidates::Tree(Tree::new(ranking, spread, nodes))
        }
    }

    /// The best node that has not refused; `None` when all have.
    pub fn next(&mut self, nodes: &Nodes) -> Option<NodeIndex> {
        match self {
            Candidates::Flat(flat) => flat.next(nodes),
            Candidates::Tree(tree) => tree.next(),
        }
    }

    /// The node offered last got a task, which is on its account by now.
    pub fn placed(&mut self, nodes: &Nodes, index: NodeIndex) {
        match self {
            Candidates::Flat(flat) => flat.placed(nodes, index),
            Candidates::Tree(tree) => tree.placed(nodes, index),
        }
    }
}

/// All nodes in one leaf.
#[derive(Debug)]
pub struct Flat {
    ranking: Ranking,
    /// How far the nodes without the service have been offered; they beat all others. Whoever gets a task
    /// meanwhile has the service from then on.
    behind: Option<Rank>,
    /// Nodes with the service, once those without are used up.
    with_service: Option<Heap>,
    /// Nodes with many failures come after all others.
    faulty: Heap,
}

impl Flat {
    fn new(ranking: Ranking) -> Flat {
        Flat {
            ranking,
            behind: None,
            with_service: None,
            faulty: Heap::new(),
        }
    }

    fn next(&mut self, nodes: &Nodes) -> Option<NodeIndex> {
        if self.with_service.is_none() {
            if let Some(index) = self.next_without_service(nodes) {
                return Some(index);
            }
            self.collect_rest(nodes);
        }
        let heap = self.with_service.as_mut()?;
        let Reverse(key) = heap.pop().or_else(|| self.faulty.pop())?;
        Some(key.index)
    }

    fn next_without_service(&mut self, nodes: &Nodes) -> Option<NodeIndex> {
        let ranking = &self.ranking;
        let mut behind = nodes.ranked_behind(self.behind.as_ref());
        let found = behind.find(|(_, _, index)| {
            !ranking.faulty.contains_key(index) && nodes.of_service(&ranking.service, *index) == 0
        });
        let found = found.cloned()?;
        let index = found.2;
        self.behind = Some(found);
        Some(index)
    }

    fn collect_rest(&mut self, nodes: &Nodes) {
        let ranking = &self.ranking;
        let with_service = nodes.with_service(&ranking.service);
        let healthy = with_service.filter(|index| !ranking.faulty.contains_key(index));
        let keys = healthy.filter_map(|index| ranking.key(nodes, index));
        self.with_service = Some(keys.map(Reverse).collect());
        let faulty = ranking.faulty.keys();
        let keys = faulty.filter_map(|index| ranking.key(nodes, *index));
        self.faulty = keys.map(Reverse).collect();
    }

    fn placed(&mut self, nodes: &Nodes, index: NodeIndex) {
        let Some(with_service) = &mut self.with_service else {
            return;
        };
        if let Some(key) = self.ranking.key(nodes, index) {
            if key.failures > 0 {
                self.faulty.push(Reverse(key));
            } else {
                with_service.push(Reverse(key));
            }
        }
    }
}

/// Nodes grouped by the values of their labels, level by level.
#[derive(Debug)]
pub struct Tree {
    ranking: Ranking,
    /// Parents come before their children; the first is the root.
    vertices: Vec<Vertex>,
    leaf_of: HashMap<NodeIndex, usize>,
}

#[derive(Debug, Default)]
struct Vertex {
    parent: Option<usize>,
    /// Value of the label that this vertex stands for.
    label: String,
    /// Active tasks of the service on all nodes below, whether or not they can take another.
    of_service: u64,
    /// Children that can still take a task: tasks of the service, label value, vertex.
    open: BTreeSet<(u64, String, usize)>,
    /// Nodes, in leaves.
    heap: Heap,
}

const ROOT: usize = 0;

impl Tree {
    fn new(ranking: Ranking, spread: &[SpreadLabel], nodes: &Nodes) -> Tree {
        let mut tree = Tree {
            ranking,
            vertices: vec![Vertex::default()],
            leaf_of: HashMap::new(),
        };
        let mut children: BTreeMap<(usize, &str), usize> = BTreeMap::new();
        for (_, _, index) in nodes.ranking() {
            let Some((node, _)) = nodes.known(*index) else {
                continue;
            };
            let mut vertex = ROOT;
            for label in spread {
                let value = label.value(node);
                vertex = *children
                    .entry((vertex, value))
                    .or_insert_with(|| tree.add_child(vertex, value));
            }
            tree.add_node(nodes, vertex, *index);
        }
        for vertex in 1..tree.vertices.len() {
            tree.open(vertex);
        }
        tree
    }

    fn add_child(&mut self, parent: usize, label: &str) -> usize {
        self.vertices.push(Vertex {
            parent: Some(parent),
            label: label.to_owned(),
            ..Vertex::default()
        });
        self.vertices.len() - 1
    }

    fn add_node(&mut self, nodes: &Nodes, leaf: usize, index: NodeIndex) {
        let Some(key) = self.ranking.key(nodes, index) else {
            return;
        };
        let count = u64::from(key.of_service);
        self.vertices[leaf].heap.push(Reverse(key));
        self.leaf_of.insert(index, leaf);
        let mut vertex = Some(leaf);
        while let Some(at) = vertex {
            self.vertices[at].of_service += count;
            vertex = self.vertices[at].parent;
        }
    }

    fn next(&mut self) -> Option<NodeIndex> {
        loop {
            let mut vertex = ROOT;
            while let Some((_, _, child)) = self.vertices[vertex].open.first() {
                vertex = *child;
            }
            if let Some(Reverse(key)) = self.vertices[vertex].heap.pop() {
                return Some(key.index);
            }
            if vertex == ROOT {
                return None;
            }
            self.close(vertex);
        }
    }

    fn placed(&mut self, nodes: &Nodes, index: NodeIndex) {
        let Some(leaf) = self.leaf_of.get(&index).copied() else {
            return;
        };
        if let Some(key) = self.ranking.key(nodes, index) {
            self.vertices[leaf].heap.push(Reverse(key));
        }
        let mut vertex = Some(leaf);
        while let Some(at) = vertex {
            self.close(at);
            self.vertices[at].of_service += 1;
            self.open(at);
            vertex = self.vertices[at].parent;
        }
    }

    /// Offers a branch to its parent. An inner branch whose children are all closed is closed by the next
    /// descent that ends in it.
    fn open(&mut self, vertex: usize) {
        if let Some((parent, entry)) = self.entry(vertex) {
            self.vertices[parent].open.insert(entry);
        }
    }

    fn close(&mut self, vertex: usize) {
        if let Some((parent, entry)) = self.entry(vertex) {
            self.vertices[parent].open.remove(&entry);
        }
    }

    fn entry(&self, vertex: usize) -> Option<(usize, (u64, String, usize))> {
        let Vertex {
            parent,
            label,
            of_service,
            ..
        } = &self.vertices[vertex];
        Some(((*parent)?, (*of_service, label.clone(), vertex)))
    }
}
