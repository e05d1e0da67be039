use super::*;
use crate::api::types::{Driver, Mount, mount};

fn context() -> Context {
    Context {
        task_id: "taskID".into(),
        task_name: "serviceName.10.taskID".into(),
        task_slot: "10".into(),
        ..Context::placeholder(
            "serviceName",
            [("b", "two"), ("a", "one")]
                .map(|(k, v)| (k.to_owned(), v.to_owned()))
                .into(),
        )
    }
}

fn expand(text: &str) -> Result<Option<String>, TemplateError> {
    let context = context();
    Expander::new(&context).expand(text)
}

// 05-A38
#[test]
fn what_expands() {
    for (template, expanded) in [
        ("", ""),
        ("plain }} text", "plain }} text"),
        ("{{.Service.Name}}-{{.Task.Slot}}", "serviceName-10"),
        ("{{.Task.Name}}", "serviceName.10.taskID"),
        ("{{ .Node.Hostname }}/{{.Node.ID}}", "nodeHostname/nodeid"),
        (
            "{{.Node.Platform.OS}}/{{.Node.Platform.Architecture}}",
            "os/architecture",
        ),
        ("{{.Service.Labels.a}}", "one"),
        ("{{index .Service.Labels \"b\"}}", "two"),
        ("{{index .Service.Labels \"none\"}}", ""),
        ("{{.Service.Labels}}", "map[a:one b:two]"),
        (
            "{{range $k, $v := .Service.Labels}}{{$k}}={{$v}},{{end}}",
            "a=one,b=two,",
        ),
        ("{{range $v := .Service.Labels}}{{$v}} {{end}}", "one two "),
        ("{{range .Service.Labels}}{{.}}{{end}}", "onetwo"),
        (
            "{{with .Service}}{{.Name}}{{$.Task.Slot}}{{end}}",
            "serviceName10",
        ),
        ("{{if eq .Task.Slot \"10\"}}ten{{else}}other{{end}}", "ten"),
        ("{{if .Missing.x}}{{end}}", "!"),
        ("{{if \"\"}}a{{else if .Task.ID}}b{{else}}c{{end}}", "b"),
        ("{{join \"-\" .Service.Name .Task.Slot}}", "serviceName-10"),
        ("{{.Task.Slot | join \"-\" \"a\" \"b\"}}", "a-b-10"),
        ("{{(index .Service.Labels \"a\") | print \"x\"}}", "xone"),
        ("{{$x := .Task.Slot}}{{$x}}{{$x = \"2\"}}{{$x}}", "102"),
        ("a {{- /* trimmed */ -}} b", "ab"),
        ("a  {{- .Task.Slot -}}\n b", "a10b"),
        ("{{/* comment */}}x", "x"),
        ("{{`raw`}}{{\"q\\\"\\u0041\"}}", "rawq\"A"),
        ("{{len .Service.Name}}{{len .Service.Labels}}", "112"),
        ("{{0x10}} {{-7}} {{1_000}} {{true}}", "16 -7 1000 true"),
        ("{{and .Task.ID 0}}{{or \"\" 5}}{{not 1}}", "05false"),
        ("{{print 1 2 \"x\" 3}}{{println \"y\" 1}}", "1 2x3y 1\n"),
        ("{{define \"x\"}}never used{{end}}", "?"),
    ] {
        let answer = match expand(template) {
            Ok(Some(text)) => text,
            Ok(None) => "?".to_owned(),
            Err(_) => "!".to_owned(),
        };
        assert_eq!(answer, expanded, "{template}");
    }
}

// 05-A38
#[test]
fn what_is_wrong() {
    for (template, reason) in [
        (
            "{{.Nothing.here}}",
            "can't evaluate field Nothing in a context",
        ),
        (
            "{{.Service.Nothing}}",
            "can't evaluate field Nothing in a service",
        ),
        (
            "{{.Service.Labels.none}}",
            "map has no entry for key \"none\"",
        ),
        ("{{.Service.Name.x}}", "can't evaluate field x in a string"),
        ("{{.Task.Labels}}", "can't evaluate field Labels in a task"),
        (
            "{{.Service.Labels.a-b}}",
            "unexpected character '-' in an action",
        ),
        ("{{", "unclosed action"),
        ("{{.Service.Name", "unclosed action"),
        ("{{.Service.Name}", "unexpected character '}' in an action"),
        ("{{}}", "missing value for command"),
        ("{{if}}{{end}}", "missing value for if"),
        ("{{.Task.ID |}}", "missing value for command"),
        ("{{nofunction}}", "function \"nofunction\" not defined"),
        ("{{env \"HOME\"}}", "function \"env\" not defined"),
        ("{{$x}}", "undefined variable \"$x\""),
        ("{{if $x := 1}}{{end}}{{$x}}", "undefined variable \"$x\""),
        ("{{end}}", "unexpected {{end}}"),
        ("{{else}}", "unexpected {{else}}"),
        ("{{if 1}}", "unclosed {{if}}"),
        (
            "{{if 1}}{{else}}{{else}}{{end}}",
            "expected {{end}}, found {{else}}",
        ),
        ("{{break}}", "{{break}} outside {{range}}"),
        ("{{\"open}}", "unterminated quoted string"),
        ("{{\"\\q\"}}", "invalid escape sequence in a quoted string"),
        ("{{`open}}", "unterminated raw quoted string"),
        ("{{'a}}", "unterminated character constant"),
        ("{{/* open }}", "unclosed comment"),
        ("{{/* a */ b}}", "comment ends before closing delimiter"),
        ("{{1x}}", "bad number syntax: \"1x\""),
        ("{{(.Task.ID}}", "unclosed left paren"),
        ("{{.Task.ID)}}", "unexpected token in command"),
        ("{{nil}}", "nil is not a command"),
        (
            "{{.Task.ID | \"x\"}}",
            "non executable command in pipeline stage 2",
        ),
        (
            "{{.Task.ID .Task.Slot}}",
            "can't give arguments to something that is not a function",
        ),
        ("{{$a, $b := 1}}", "too many declarations"),
        ("{{join}}", "join needs a separator"),
        ("{{join \",\" 1}}", "join expected a string, got a number"),
        ("{{eq .Task.Slot 10}}", "incompatible types for comparison"),
        ("{{eq .Task.Slot}}", "wrong number of arguments for eq: 1"),
        (
            "{{range .Task.Slot}}{{end}}",
            "range can't iterate over a string",
        ),
        ("{{template x}}", "expected a quoted name after template"),
    ] {
        assert_eq!(
            expand(template),
            Err(TemplateError(reason.to_owned())),
            "{template}"
        );
    }
}

#[test]
fn what_is_left_to_the_worker() {
    for template in [
        "{{printf \"%05d\" 7}}",
        "{{1.5}}{{'a'}}",
        "{{.Service}}",
        "{{block \"x\" .}}{{end}}",
        "{{define \"x\"}}{{end}}{{template \"x\" .}}",
        "{{range .Service.Labels}}{{break}}{{end}}",
        "{{html .Task.ID}}",
        "{{range 3}}{{end}}",
    ] {
        assert_eq!(expand(template), Ok(None), "{template}");
    }
    // Branches that are not taken do not matter.
    assert_eq!(
        expand("{{if false}}{{.Nothing}}{{end}}x"),
        Ok(Some("x".to_owned()))
    );
}

#[test]
fn work_is_bounded() {
    let nested_parens = format!("{{{{{}1{}}}}}", "(".repeat(65), ")".repeat(65));
    let nested_blocks = format!("{}{}", "{{if 1}}".repeat(65), "{{end}}".repeat(65));
    for template in [&nested_parens, &nested_blocks] {
        let error = expand(template).unwrap_err();
        assert!(error.0.starts_with("nested deeper"), "{error}");
    }
    let doubling = format!("{{{{$x := \"ab\"}}}}{}", "{{$x = print $x $x}}".repeat(30));
    let error = expand(&doubling).unwrap_err();
    assert!(error.0.starts_with("expands to more than"), "{error}");

    let labels = (0..300).map(|n| (format!("{n}"), "x".repeat(20))).collect();
    let context = Context::placeholder("s", labels);
    let mut expander = Expander::new(&context);
    let over = "{{range .Service.Labels}}{{range $.Service.Labels}}{{end}}{{end}}";
    let mut texts = 0;
    let error = loop {
        match expander.expand(over) {
            Ok(_) => texts += 1,
            Err(error) => break error,
        }
    };
    assert!(texts > 1 && texts < 20, "the budget spans texts: {texts}");
    assert!(
        error.0.starts_with("the templates of one spec need"),
        "{error}"
    );
}

#[test]
fn only_the_template_fields_are_visited() {
    let everywhere = || "{{x}}".to_owned();
    let map = || [(everywhere(), everywhere())].into();
    let mut spec = ContainerSpec {
        image: everywhere(),
        labels: map(),
        hostname: everywhere(),
        env: vec!["{{x}}={{x}}=y".into(), everywhere()],
        args: vec![everywhere()],
        mounts: vec![Mount {
            source: everywhere(),
            target: everywhere(),
            volume_options: Some(mount::VolumeOptions {
                labels: map(),
                driver_config: Some(Driver {
                    name: everywhere(),
                    options: map(),
                }),
                ..Default::default()
            }),
            ..Default::default()
        }],
        ..Default::default()
    };
    visit(&mut spec, |text| Ok::<_, ()>(text.replace("{{x}}", "1"))).unwrap();
    assert_eq!(spec.image, "{{x}}");
    assert_eq!(spec.labels, map());
    assert_eq!(spec.hostname, "1");
    assert_eq!(spec.env, ["{{x}}=1=y", "{{x}}"]);
    assert_eq!(spec.args, ["{{x}}"]);
    let mount = &spec.mounts[0];
    assert_eq!((mount.source.as_str(), mount.target.as_str()), ("1", "1"));
    let options = mount.volume_options.as_ref().unwrap();
    assert_eq!(options.labels["{{x}}"], "1");
    let driver = options.driver_config.as_ref().unwrap();
    assert_eq!(
        (driver.name.as_str(), driver.options["{{x}}"].as_str()),
        ("{{x}}", "1")
    );
}

/// No text makes the parser panic or run away.
#[test]
fn hostile_texts() {
    let alphabet = [
        "{{", "}}", " -}}", "{{- ", ".", "$", "x", "(", ")", "|", ":=", "\"", "'", "`", "\\",
        "if ", "else ", "end", "range ", "define ", "-", "0", "/*", "*/", ",", "é", "\n", " ",
    ];
    let mut state = 1u64;
    for _ in 0..20_000 {
        let mut text = String::from("{{");
        for _ in 0..12 {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            text.push_str(alphabet[(state >> 33) as usize % alphabet.len()]);
        }
        let _ = expand(&text);
    }
}
