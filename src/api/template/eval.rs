//! Evaluates a parsed template against a context.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::parse::{Branch, Node, Operand, Pipeline, Start};
use super::{EXPANDED_BYTES_MAX, Expander, Functions, STEP_WORK, TemplateError, WORK_MAX};

/// Why evaluation ended early.
enum Stop {
    /// The template is wrong.
    Invalid(String),
    /// The template may be right, but uses what is not evaluated here.
    Unsupported,
}

type Outcome<T> = Result<T, Stop>;

#[derive(Debug, Clone, PartialEq)]
enum Value {
    Nil,
    Bool(bool),
    Int(i64),
    Str(String),
    Map(Arc<BTreeMap<String, String>>),
    Struct(Part),
}

/// The structures of a context.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Part {
    Root,
    Service,
    Node,
    Platform,
    Task,
}

/// Expands a parsed template; `None` if it uses something that is not evaluated here.
pub(super) fn run(
    nodes: &[Node],
    expander: &mut Expander<'_>,
) -> Result<Option<String>, TemplateError> {
    let root = Value::Struct(Part::Root);
    let mut evaluation = Evaluation {
        expander,
        variables: vec![(String::new(), root.clone())],
        output: String::new(),
    };
    match evaluation.list(nodes, &root) {
        Ok(()) => Ok(Some(evaluation.output)),
        Err(Stop::Unsupported) => Ok(None),
        Err(Stop::Invalid(reason)) => Err(TemplateError(reason)),
    }
}

fn invalid<T>(reason: impl Into<String>) -> Outcome<T> {
    Err(Stop::Invalid(reason.into()))
}

struct Evaluation<'e, 'c> {
    expander: &'e mut Expander<'c>,
    /// Variables in scope, innermost last; the root variable `$` has an empty name.
    variables: Vec<(String, Value)>,
    output: String,
}

impl Evaluation<'_, '_> {
    fn list(&mut self, nodes: &[Node], dot: &Value) -> Outcome<()> {
        for node in nodes {
            self.step()?;
            match node {
                Node::Text(text) => self.write(text)?,
                Node::Action(pipeline) => {
                    let value = self.pipeline(pipeline, dot)?;
                    if pipeline.variables.is_empty() {
                        self.write(&printed(&value)?)?;
                    }
                }
                Node::If(branch) => self.branch(branch, dot, false)?,
                Node::With(branch) => self.branch(branch, dot, true)?,
                Node::Range(branch) => self.range(branch, dot)?,
                Node::Opaque => return Err(Stop::Unsupported),
            }
        }
        Ok(())
    }

    fn step(&mut self) -> Outcome<()> {
        self.work(STEP_WORK)
    }

    fn work(&mut self, bytes: usize) -> Outcome<()> {
        match self.expander.work_left.checked_sub(bytes) {
            Some(left) => {
                self.expander.work_left = left;
                Ok(())
            }
            None => {
                self.expander.work_left = 0;
                invalid(format!(
                    "the templates of one spec need more than {WORK_MAX} bytes of work"
                ))
            }
        }
    }

    fn write(&mut self, text: &str) -> Outcome<()> {
        if self.output.len() + text.len() > EXPANDED_BYTES_MAX {
            return invalid(format!("expands to more than {EXPANDED_BYTES_MAX} bytes"));
        }
        self.output.push_str(text);
        self.work(text.len())
    }

    fn branch(&mut self, branch: &Branch, dot: &Value, moves_dot: bool) -> Outcome<()> {
        let scope = self.variables.len();
        let value = self.pipeline(&branch.pipeline, dot)?;
        match (is_true(&value), moves_dot) {
            (true, true) => self.list(&branch.then, &value)?,
            (true, false) => self.list(&branch.then, dot)?,
            (false, _) => self.list(&branch.otherwise, dot)?,
        }
        self.variables.truncate(scope);
        Ok(())
    }

    fn range(&mut self, branch: &Branch, dot: &Value) -> Outcome<()> {
        let scope = self.variables.len();
        let value = self.pipeline(&branch.pipeline, dot)?;
        let map = match value {
            Value::Map(map) => map,
            // Newer engines range over integers.
            Value::Int(_) => return Err(Stop::Unsupported),
            other => return invalid(format!("range can't iterate over a {}", type_name(&other))),
        };
        if map.is_empty() {
            self.list(&branch.otherwise, dot)?;
        }
        for (key, value) in map.iter() {
            self.step()?;
            self.work(key.len() + value.len())?;
            let value = Value::Str(value.clone());
            // A single variable gets the value.
            let assigned = match &branch.pipeline.variables[..] {
                [] => vec![],
                [one] => vec![(one, value.clone())],
                [first, second, ..] => {
                    vec![(first, Value::Str(key.clone())), (second, value.clone())]
                }
            };
            for (name, value) in assigned {
                self.set(name, value);
            }
            let inner = self.variables.len();
            self.list(&branch.then, &value)?;
            self.variables.truncate(inner);
        }
        self.variables.truncate(scope);
        Ok(())
    }

    /// The value of a pipeline, also assigned to its variables.
    fn pipeline(&mut self, pipeline: &Pipeline, dot: &Value) -> Outcome<Value> {
        let mut result = None;
        for command in &pipeline.commands {
            result = Some(self.command(command, dot, result)?);
        }
        let value = result.unwrap_or(Value::Nil);
        for name in &pipeline.variables {
            if pipeline.declares {
                self.variables.push((name.clone(), value.clone()));
            } else {
                self.set(name, value.clone());
            }
        }
        Ok(value)
    }

    /// Assigns to the innermost variable of that name.
    fn set(&mut self, name: &str, value: Value) {
        if let Some((_, slot)) = self
            .variables
            .iter_mut()
            .rev()
            .find(|(known, _)| known == name)
        {
            *slot = value;
        }
    }

    fn command(
        &mut self,
        command: &[Operand],
        dot: &Value,
        previous: Option<Value>,
    ) -> Outcome<Value> {
        let Some((first, arguments)) = command.split_first() else {
            return Err(Stop::Unsupported);
        };
        if let Start::Function(name) = &first.start {
            let value = self.call(name, arguments, dot, previous)?;
            return self.fields(value, &first.fields);
        }
        if !arguments.is_empty() || previous.is_some() {
            return invalid("can't give arguments to something that is not a function");
        }
        self.operand(first, dot)
    }

    fn operand(&mut self, operand: &Operand, dot: &Value) -> Outcome<Value> {
        self.step()?;
        let start = match &operand.start {
            Start::Dot => dot.clone(),
            Start::Variable(name) => self.variable(name)?,
            Start::Function(name) => self.call(name, &[], dot, None)?,
            Start::Str(value) => Value::Str(value.clone()),
            Start::Int(value) => Value::Int(*value),
            Start::Bool(value) => Value::Bool(*value),
            Start::Nil => Value::Nil,
            Start::OtherConstant => return Err(Stop::Unsupported),
            Start::Nested(pipeline) => self.pipeline(pipeline, dot)?,
        };
        self.fields(start, &operand.fields)
    }

    fn variable(&self, name: &str) -> Outcome<Value> {
        match self.variables.iter().rev().find(|(known, _)| known == name) {
            Some((_, value)) => Ok(value.clone()),
            None => invalid(format!("undefined variable \"${name}\"")),
        }
    }

    fn fields(&mut self, start: Value, fields: &[String]) -> Outcome<Value> {
        let value = fields
            .iter()
            .try_fold(start, |value, field| self.field(&value, field))?;
        if let Value::Str(text) = &value {
            self.work(text.len())?;
        }
        Ok(value)
    }

    fn field(&self, value: &Value, field: &str) -> Outcome<Value> {
        let context = self.expander.context;
        let text = |text: &String| Ok(Value::Str(text.clone()));
        match (value, field) {
            (Value::Map(map), key) => match map.get(key) {
                Some(value) => text(value),
                None => invalid(format!("map has no entry for key {key:?}")),
            },
            (Value::Struct(Part::Root), "Service") => Ok(Value::Struct(Part::Service)),
            (Value::Struct(Part::Root), "Node") => Ok(Value::Struct(Part::Node)),
            (Value::Struct(Part::Root), "Task") => Ok(Value::Struct(Part::Task)),
            (Value::Struct(Part::Service), "ID") => text(&context.service_id),
            (Value::Struct(Part::Service), "Name") => text(&context.service_name),
            (Value::Struct(Part::Service), "Labels") => {
                Ok(Value::Map(self.expander.labels.clone()))
            }
            (Value::Struct(Part::Node), "ID") => text(&context.node_id),
            (Value::Struct(Part::Node), "Hostname") => text(&context.node_hostname),
            (Value::Struct(Part::Node), "Platform") => Ok(Value::Struct(Part::Platform)),
            (Value::Struct(Part::Platform), "OS") => text(&context.node_os),
            (Value::Struct(Part::Platform), "Architecture") => text(&context.node_architecture),
            (Value::Struct(Part::Task), "ID") => text(&context.task_id),
            (Value::Struct(Part::Task), "Name") => text(&context.task_name),
            (Value::Struct(Part::Task), "Slot") => text(&context.task_slot),
            (other, field) => invalid(format!(
                "can't evaluate field {field} in a {}",
                type_name(other)
            )),
        }
    }

    fn call(
        &mut self,
        name: &str,
        arguments: &[Operand],
        dot: &Value,
        previous: Option<Value>,
    ) -> Outcome<Value> {
        if matches!(name, "and" | "or") {
            return self.choose(name == "and", arguments, dot, previous);
        }
        let mut values = Vec::with_capacity(arguments.len() + 1);
        for argument in arguments {
            values.push(self.operand(argument, dot)?);
        }
        values.extend(previous);
        match self.expander.functions {
            Some(more) if more.names().contains(&name) => {
                let text = call_more(more, name, &values)?;
                self.work(text.len())?;
                Ok(Value::Str(text))
            }
            _ => apply(name, &values),
        }
    }

    /// `and` and `or`: the first argument that decides, or the last one.
    fn choose(
        &mut self,
        until_false: bool,
        arguments: &[Operand],
        dot: &Value,
        previous: Option<Value>,
    ) -> Outcome<Value> {
        let mut last = None;
        for argument in arguments {
            let value = self.operand(argument, dot)?;
            if is_true(&value) != until_false {
                return Ok(value);
            }
            last = Some(value);
        }
        match previous.or(last) {
            Some(value) => Ok(value),
            None => invalid("wrong number of arguments: want at least 1, got 0"),
        }
    }
}

/// Calls a function that is not of the language.
fn call_more(more: &dyn Functions, name: &str, values: &[Value]) -> Outcome<String> {
    let mut arguments = Vec::with_capacity(values.len());
    for value in values {
        match value {
            Value::Str(text) => arguments.push(text.as_str()),
            other => {
                return invalid(format!(
                    "{name} expected a string, got a {}",
                    type_name(other)
                ));
            }
        }
    }
    more.call(name, &arguments)
        .or_else(|reason| invalid(format!("error calling {name}: {reason}")))
}

/// All functions of the language that always evaluate their arguments.
fn apply(name: &str, values: &[Value]) -> Outcome<Value> {
    match (name, values) {
        ("not", [value]) => Ok(Value::Bool(!is_true(value))),
        ("len", [Value::Str(text)]) => Ok(length(text.len())),
        ("len", [Value::Map(map)]) => Ok(length(map.len())),
        ("len", [other]) => invalid(format!("len of a {}", type_name(other))),
        ("index", [value]) => Ok(value.clone()),
        ("index", [Value::Map(map), Value::Str(key)]) => {
            Ok(Value::Str(map.get(key).cloned().unwrap_or_default()))
        }
        ("join", [_, ..]) => join(values),
        ("join", []) => invalid("join needs a separator"),
        ("print" | "println", _) => print(values, name == "println"),
        ("eq", [first, others @ ..]) if !others.is_empty() => {
            let mut found = false;
            for other in others {
                found |= equal(first, other)?;
            }
            Ok(Value::Bool(found))
        }
        ("ne", [left, right]) => equal(left, right).map(|equal| Value::Bool(!equal)),
        ("lt", [left, right]) => less(left, right).map(Value::Bool),
        ("ge", [left, right]) => less(left, right).map(|less| Value::Bool(!less)),
        ("gt", [left, right]) => less(right, left).map(Value::Bool),
        ("le", [left, right]) => less(right, left).map(|less| Value::Bool(!less)),
        ("not" | "len" | "eq" | "ne" | "lt" | "le" | "gt" | "ge", _) | ("index", []) => invalid(
            format!("wrong number of arguments for {name}: {}", values.len()),
        ),
        _ => Err(Stop::Unsupported),
    }
}

fn length(len: usize) -> Value {
    Value::Int(i64::try_from(len).unwrap_or(i64::MAX))
}

/// The first argument is the separator of the others.
fn join(values: &[Value]) -> Outcome<Value> {
    let mut texts = Vec::with_capacity(values.len());
    for value in values {
        match value {
            Value::Str(text) => texts.push(text.as_str()),
            other => {
                return invalid(format!(
                    "join expected a string, got a {}",
                    type_name(other)
                ));
            }
        }
    }
    let Some((separator, parts)) = texts.split_first() else {
        return invalid("join needs a separator");
    };
    let bytes: usize = parts.iter().map(|part| part.len() + separator.len()).sum();
    if bytes > EXPANDED_BYTES_MAX {
        return invalid(format!("expands to more than {EXPANDED_BYTES_MAX} bytes"));
    }
    Ok(Value::Str(parts.join(separator)))
}

/// `print` puts a blank between two arguments if neither is a string, `println` between all.
fn print(values: &[Value], line: bool) -> Outcome<Value> {
    let mut text = String::new();
    for (at, value) in values.iter().enumerate() {
        let is_str = |value: Option<&Value>| matches!(value, Some(Value::Str(_)));
        let before = at.checked_sub(1).and_then(|before| values.get(before));
        if at > 0 && (line || !(is_str(before) || is_str(Some(value)))) {
            text.push(' ');
        }
        text.push_str(&printed(value)?);
        if text.len() > EXPANDED_BYTES_MAX {
            return invalid(format!("expands to more than {EXPANDED_BYTES_MAX} bytes"));
        }
    }
    if line {
        text.push('\n');
    }
    Ok(Value::Str(text))
}

fn equal(left: &Value, right: &Value) -> Outcome<bool> {
    match (left, right) {
        (Value::Str(_), Value::Str(_))
        | (Value::Int(_), Value::Int(_))
        | (Value::Bool(_), Value::Bool(_)) => Ok(left == right),
        (Value::Map(_) | Value::Struct(_) | Value::Nil, _)
        | (_, Value::Map(_) | Value::Struct(_) | Value::Nil) => Err(Stop::Unsupported),
        _ => invalid("incompatible types for comparison"),
    }
}

fn less(left: &Value, right: &Value) -> Outcome<bool> {
    match (left, right) {
        (Value::Str(left), Value::Str(right)) => Ok(left < right),
        (Value::Int(left), Value::Int(right)) => Ok(left < right),
        (Value::Str(_) | Value::Int(_), Value::Str(_) | Value::Int(_)) => {
            invalid("incompatible types for comparison")
        }
        _ => invalid("invalid type for comparison"),
    }
}

fn is_true(value: &Value) -> bool {
    match value {
        Value::Nil => false,
        Value::Bool(value) => *value,
        Value::Int(value) => *value != 0,
        Value::Str(text) => !text.is_empty(),
        Value::Map(map) => !map.is_empty(),
        Value::Struct(_) => true,
    }
}

fn printed(value: &Value) -> Outcome<String> {
    match value {
        Value::Str(text) => Ok(text.clone()),
        Value::Int(value) => Ok(value.to_string()),
        Value::Bool(value) => Ok(value.to_string()),
        Value::Map(map) => {
            let entries: Vec<String> = map.iter().map(|(k, v)| format!("{k}:{v}")).collect();
            Ok(format!("map[{}]", entries.join(" ")))
        }
        Value::Struct(_) | Value::Nil => Err(Stop::Unsupported),
    }
}

fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Nil => "nil value",
        Value::Bool(_) => "boolean",
        Value::Int(_) => "number",
        Value::Str(_) => "string",
        Value::Map(_) => "map",
        Value::Struct(Part::Root) => "context",
        Value::Struct(Part::Service) => "service",
        Value::Struct(Part::Node) => "node",
        Value::Struct(Part::Platform) => "platform",
        Value::Struct(Part::Task) => "task",
    }
}
