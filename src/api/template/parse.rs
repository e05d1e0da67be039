//! Turns the pieces of a template into a tree, and finds everything that is wrong without knowing the
//! values: unknown functions and variables, misplaced keywords, incomplete actions.

use super::lex::{self, Piece, Token};
use super::{NESTING_MAX, TemplateError};

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Node {
    Text(String),
    Action(Pipeline),
    If(Branch),
    With(Branch),
    Range(Branch),
    /// Well-formed, but not evaluated here.
    Opaque,
}

/// A pipeline that decides, and what follows from it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Branch {
    pub pipeline: Pipeline,
    pub then: Vec<Node>,
    pub otherwise: Vec<Node>,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Pipeline {
    /// Variables that receive the result; two only for a range.
    pub variables: Vec<String>,
    /// Whether the variables are new.
    pub declares: bool,
    /// At least one; each gets the result of the one before as its last argument.
    pub commands: Vec<Vec<Operand>>,
}

/// One value of a command: a start and the fields that are looked up in it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Operand {
    pub start: Start,
    pub fields: Vec<String>,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Start {
    Dot,
    Variable(String),
    Function(String),
    Str(String),
    Int(i64),
    Bool(bool),
    Nil,
    OtherConstant,
    Nested(Box<Pipeline>),
}

/// Functions of the language; those of them that are evaluated here are listed in `eval`.
const FUNCTIONS: [&str; 20] = [
    "and", "call", "eq", "ge", "gt", "html", "index", "join", "js", "le", "len", "lt", "ne", "not",
    "or", "print", "printf", "println", "slice", "urlquery",
];

/// `more` are names of functions besides those of the language.
pub(super) fn parse(template: &str, more: &[&str]) -> Result<Vec<Node>, TemplateError> {
    let mut parser = Parser {
        more,
        pieces: lex::split(template)?.into_iter(),
        variables: vec![String::new()],
        ranges: 0,
        depth: 0,
    };
    match parser.list()? {
        (nodes, End::Template) => Ok(nodes),
        (_, End::Block) => Err(error("unexpected {{end}}")),
        (_, End::Else(_)) => Err(error("unexpected {{else}}")),
    }
}

fn error(reason: impl Into<String>) -> TemplateError {
    TemplateError(reason.into())
}

struct Parser<'m> {
    /// Names of functions besides those of the language.
    more: &'m [&'m str],
    pieces: std::vec::IntoIter<Piece>,
    /// Names of the variables in scope, the root variable `$` (empty name) first.
    variables: Vec<String>,
    /// Enclosing ranges.
    ranges: usize,
    /// Enclosing blocks and parentheses.
    depth: usize,
}

/// What ended a list of nodes.
enum End {
    Template,
    Block,
    /// `else`, with the rest of an `else if` or `else with`.
    Else(Vec<Token>),
}

impl Parser<'_> {
    fn list(&mut self) -> Result<(Vec<Node>, End), TemplateError> {
        let mut nodes = Vec::new();
        while let Some(piece) = self.pieces.next() {
            let tokens = match piece {
                Piece::Text(text) => {
                    nodes.push(Node::Text(text));
                    continue;
                }
                Piece::Action(tokens) => tokens,
            };
            let mut action = Action::new(tokens);
            match action.keyword() {
                Some("end") => {
                    action.skip();
                    action.finish("end")?;
                    return Ok((nodes, End::Block));
                }
                Some("else") => {
                    action.skip();
                    return Ok((nodes, End::Else(action.rest())));
                }
                _ => nodes.push(self.action(action)?),
            }
        }
        Ok((nodes, End::Template))
    }

    fn action(&mut self, mut action: Action) -> Result<Node, TemplateError> {
        let Some(keyword) = action.keyword().map(str::to_owned) else {
            return Ok(Node::Action(self.pipeline(&mut action, "command")?));
        };
        action.skip();
        match keyword.as_str() {
            "if" | "with" | "range" => self.branch(&keyword, action),
            "break" | "continue" if self.ranges == 0 => {
                Err(error(format!("{{{{{keyword}}}}} outside {{{{range}}}}")))
            }
            "break" | "continue" => action.finish(&keyword).map(|()| Node::Opaque),
            "template" => {
                action.name(&keyword)?;
                if !action.is_finished() {
                    self.pipeline(&mut action, &keyword)?;
                }
                Ok(Node::Opaque)
            }
            _ => self.named_block(&keyword, action),
        }
    }

    /// `define` and `block`.
    fn named_block(&mut self, keyword: &str, mut action: Action) -> Result<Node, TemplateError> {
        action.name(keyword)?;
        if keyword == "block" {
            self.pipeline(&mut action, keyword)?;
        } else {
            action.finish(keyword)?;
        }
        self.enter()?;
        let (_, end) = self.list()?;
        self.depth -= 1;
        match end {
            End::Block => Ok(Node::Opaque),
            End::Template => Err(error(format!("unclosed {{{{{keyword}}}}}"))),
            End::Else(_) => Err(error("unexpected {{else}}")),
        }
    }

    fn branch(&mut self, keyword: &str, mut action: Action) -> Result<Node, TemplateError> {
        self.enter()?;
        let scope = self.variables.len();
        let pipeline = self.pipeline(&mut action, keyword)?;
        self.ranges += usize::from(keyword == "range");
        let (then, end) = self.list()?;
        self.ranges -= usize::from(keyword == "range");
        let otherwise = match end {
            End::Block => Vec::new(),
            End::Else(rest) => self.otherwise(keyword, rest)?,
            End::Template => return Err(error(format!("unclosed {{{{{keyword}}}}}"))),
        };
        self.variables.truncate(scope);
        self.depth -= 1;
        let branch = Branch {
            pipeline,
            then,
            otherwise,
        };
        Ok(match keyword {
            "if" => Node::If(branch),
            "with" => Node::With(branch),
            _ => Node::Range(branch),
        })
    }

    /// What follows `else`. In `else if` the chained branch takes the closing `end` with it.
    fn otherwise(&mut self, keyword: &str, rest: Vec<Token>) -> Result<Vec<Node>, TemplateError> {
        let mut action = Action::new(rest);
        if action.keyword() == Some(keyword) && keyword != "range" {
            action.skip();
            return Ok(vec![self.branch(keyword, action)?]);
        }
        action.finish("else")?;
        match self.list()? {
            (nodes, End::Block) => Ok(nodes),
            (_, End::Else(_)) => Err(error("expected {{end}}, found {{else}}")),
            (_, End::Template) => Err(error(format!("unclosed {{{{{keyword}}}}}"))),
        }
    }

    fn enter(&mut self) -> Result<(), TemplateError> {
        self.depth += 1;
        if self.depth > NESTING_MAX {
            return Err(error(format!("nested deeper than {NESTING_MAX} levels")));
        }
        Ok(())
    }

    /// A pipeline up to the end of its action or to its closing parenthesis.
    fn pipeline(&mut self, action: &mut Action, context: &str) -> Result<Pipeline, TemplateError> {
        let (variables, declares) = action.declarations(context == "range")?;
        if !declares {
            variables.iter().try_for_each(|name| self.known(name))?;
        }
        let mut commands = Vec::new();
        loop {
            let command = self.command(action)?;
            if command.is_empty() {
                return Err(error(format!("missing value for {context}")));
            }
            commands.push(command);
            if !action.take(&Token::Pipe) {
                break;
            }
        }
        if context != "parenthesis" {
            action.finish(context)?;
        }
        check_commands(&commands)?;
        if declares {
            self.variables.extend(variables.iter().cloned());
        }
        Ok(Pipeline {
            variables,
            declares,
            commands,
        })
    }

    fn known(&self, name: &str) -> Result<(), TemplateError> {
        if self.variables.iter().any(|known| known == name) {
            return Ok(());
        }
        Err(error(format!("undefined variable \"${name}\"")))
    }

    /// Operands up to a pipe or the end of the pipeline; they are separated by blanks.
    fn command(&mut self, action: &mut Action) -> Result<Vec<Operand>, TemplateError> {
        let mut operands = Vec::new();
        loop {
            action.skip_blanks();
            let Some(start) = self.start(action)? else {
                return Ok(operands);
            };
            let mut fields = Vec::new();
            while let Some(Token::Field(name)) = action.peek() {
                fields.push(name.clone());
                action.skip();
            }
            if !fields.is_empty() && start.is_constant() {
                return Err(error("unexpected . after a constant"));
            }
            operands.push(Operand { start, fields });
            if !matches!(
                action.peek(),
                None | Some(Token::Space | Token::Pipe | Token::Close)
            ) {
                return Err(error("unexpected token in operand"));
            }
        }
    }

    /// The start of an operand, or `None` if no operand stands here.
    fn start(&mut self, action: &mut Action) -> Result<Option<Start>, TemplateError> {
        let start = match action.peek() {
            Some(Token::Dot) => Start::Dot,
            // Its name stays and is read as the first field of what the dot means.
            Some(Token::Field(_)) => return Ok(Some(Start::Dot)),
            Some(Token::Variable(name)) => {
                self.known(name)?;
                Start::Variable(name.clone())
            }
            Some(Token::Str(value)) => Start::Str(value.clone()),
            Some(Token::Int(value)) => Start::Int(*value),
            Some(Token::OtherConstant) => Start::OtherConstant,
            Some(Token::Word(word)) => match word.as_str() {
                "true" => Start::Bool(true),
                "false" => Start::Bool(false),
                "nil" => Start::Nil,
                name if FUNCTIONS.contains(&name) || self.more.contains(&name) => {
                    Start::Function(name.to_owned())
                }
                name => return Err(error(format!("function {name:?} not defined"))),
            },
            Some(Token::Open) => {
                action.skip();
                return self.nested(action).map(Some);
            }
            _ => return Ok(None),
        };
        action.skip();
        Ok(Some(start))
    }

    fn nested(&mut self, action: &mut Action) -> Result<Start, TemplateError> {
        self.enter()?;
        let pipeline = self.pipeline(action, "parenthesis")?;
        self.depth -= 1;
        if !action.take(&Token::Close) {
            return Err(error("unclosed left paren"));
        }
        Ok(Start::Nested(Box::new(pipeline)))
    }
}

impl Start {
    fn is_constant(&self) -> bool {
        matches!(
            self,
            Start::Str(_) | Start::Int(_) | Start::Bool(_) | Start::Nil | Start::OtherConstant
        )
    }
}

/// Constants can only begin a pipeline, and `nil` alone is no command.
fn check_commands(commands: &[Vec<Operand>]) -> Result<(), TemplateError> {
    for (stage, command) in commands.iter().enumerate() {
        let Some(first) = command.first() else {
            continue;
        };
        if stage > 0 && first.start.is_constant() {
            return Err(error(format!(
                "non executable command in pipeline stage {}",
                stage + 1
            )));
        }
        if first.start == Start::Nil {
            return Err(error("nil is not a command"));
        }
    }
    Ok(())
}

/// The tokens of one action, read from front to back.
struct Action {
    tokens: Vec<Token>,
    at: usize,
}

impl Action {
    fn new(tokens: Vec<Token>) -> Action {
        let mut action = Action { tokens, at: 0 };
        action.skip_blanks();
        action
    }

    fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.at)
    }

    fn skip(&mut self) {
        self.at += 1;
    }

    fn skip_blanks(&mut self) {
        while self.peek() == Some(&Token::Space) {
            self.skip();
        }
    }

    /// Skips a token, and blanks before it, if it stands here.
    fn take(&mut self, token: &Token) -> bool {
        self.skip_blanks();
        let found = self.peek() == Some(token);
        self.at += usize::from(found);
        found
    }

    fn keyword(&self) -> Option<&str> {
        match self.peek() {
            Some(Token::Word(word))
                if matches!(
                    word.as_str(),
                    "block"
                        | "break"
                        | "continue"
                        | "define"
                        | "else"
                        | "end"
                        | "if"
                        | "range"
                        | "template"
                        | "with"
                ) =>
            {
                Some(word)
            }
            _ => None,
        }
    }

    fn rest(mut self) -> Vec<Token> {
        self.tokens.split_off(self.at.min(self.tokens.len()))
    }

    fn is_finished(&mut self) -> bool {
        self.skip_blanks();
        self.peek().is_none()
    }

    fn finish(&mut self, context: &str) -> Result<(), TemplateError> {
        if self.is_finished() {
            return Ok(());
        }
        Err(error(format!("unexpected token in {context}")))
    }

    /// The quoted name after `template`, `define` and `block`.
    fn name(&mut self, keyword: &str) -> Result<(), TemplateError> {
        self.skip_blanks();
        match self.peek() {
            Some(Token::Str(_)) => {
                self.skip();
                Ok(())
            }
            _ => Err(error(format!("expected a quoted name after {keyword}"))),
        }
    }

    /// `$x :=`, `$x =` or, in a range, `$k, $v :=` at the start of a pipeline.
    fn declarations(&mut self, in_range: bool) -> Result<(Vec<String>, bool), TemplateError> {
        let begin = self.at;
        let mut names = Vec::new();
        loop {
            self.skip_blanks();
            let Some(Token::Variable(name)) = self.peek() else {
                break;
            };
            names.push(name.clone());
            self.skip();
            if self.take(&Token::Declare) {
                return check_declaration(names, in_range).map(|names| (names, true));
            }
            if self.take(&Token::Assign) {
                return check_declaration(names, in_range).map(|names| (names, false));
            }
            if !self.take(&Token::Comma) {
                break;
            }
            if !in_range {
                return Err(error("too many declarations"));
            }
        }
        self.at = begin;
        Ok((Vec::new(), false))
    }
}

fn check_declaration(names: Vec<String>, in_range: bool) -> Result<Vec<String>, TemplateError> {
    if names.len() > if in_range { 2 } else { 1 } {
        return Err(error("too many declarations"));
    }
    Ok(names)
}
