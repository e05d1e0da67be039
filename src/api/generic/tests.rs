use super::*;

fn names(kind: &str, values: &[&str]) -> Vec<GenericResource> {
    values.iter().map(|value| named(kind, *value)).collect()
}

/// A list as text, `apple=3 orange=red`.
fn show(entries: &[GenericResource]) -> String {
    let show_one = |entry: &GenericResource| match &entry.resource {
        Some(Resource::DiscreteResourceSpec(d)) => format!("{}={}", d.kind, d.value),
        Some(Resource::NamedResourceSpec(n)) => format!("{}={}", n.kind, n.value),
        None => "?".to_owned(),
    };
    entries.iter().map(show_one).collect::<Vec<_>>().join(" ")
}

#[test]
fn task_resources_are_amounts() {
    assert_eq!(validate_task(&[]), Ok(()));
    assert_eq!(validate_task(&[discrete("gpu", 2)]), Ok(()));
    assert!(validate_task(&[discrete("gpu", 2), named("gpu", "gpu0")]).is_err());
    assert!(validate_task(&[GenericResource::default()]).is_err());
}

// 05-A37
#[test]
fn enough() {
    let mut node = vec![discrete("apple", 3)];
    node.extend(names("orange", &["red", "green"]));
    for (kind, amount, expected) in [
        ("apple", 3, true),
        ("apple", 4, false),
        ("orange", 2, true),
        ("orange", 3, false),
        ("pear", 1, false),
    ] {
        let answer = has_enough(&node, &discrete(kind, amount));
        assert_eq!(answer, Ok(expected), "{kind}={amount}");
    }
    assert_eq!(
        has_enough(&node, &named("orange", "red")),
        Err(GenericError::NotDiscrete)
    );
}

// 05-A37
#[test]
fn having_an_assigned_resource() {
    let mut node = vec![discrete("apple", 3)];
    node.extend(names("orange", &["red", "green"]));
    assert!(has_resource(&node, &discrete("apple", 3)));
    assert!(!has_resource(&node, &discrete("apple", 4)));
    assert!(!has_resource(&node, &named("apple", "red")));
    assert!(has_resource(&node, &named("orange", "green")));
    assert!(!has_resource(&node, &named("orange", "blue")));
    assert!(!has_resource(&node, &discrete("orange", 1)));
    assert!(!has_resource(&node, &discrete("pear", 1)));
}

// 05-A37
#[test]
fn claims() {
    let claimed = |node: &[GenericResource], reservations: &[GenericResource]| {
        let (mut left, mut task) = (node.to_vec(), Vec::new());
        let result = claim(&mut left, &mut task, reservations);
        (result.is_ok(), show(&left), show(&task))
    };
    let done = |left: &str, task: &str| (true, left.to_owned(), task.to_owned());
    let apples = [discrete("apple", 3)];
    let oranges = names("orange", &["red", "orange", "blue", "green"]);
    let both = [&apples[..], &oranges[..]].concat();

    assert_eq!(
        claimed(&apples, &[discrete("apple", 2)]),
        done("apple=1", "apple=2")
    );
    assert_eq!(
        claimed(&apples, &[discrete("apple", 3)]),
        done("", "apple=3")
    );
    assert_eq!(
        claimed(&apples, &[discrete("apple", 0)]),
        done("apple=3", "")
    );
    assert_eq!(
        claimed(&apples, &[discrete("apple", 4)]),
        done("apple=3", "")
    );
    assert_eq!(
        claimed(&oranges, &[discrete("orange", 2)]),
        done("orange=blue orange=green", "orange=red orange=orange")
    );
    assert_eq!(
        claimed(&oranges, &[discrete("orange", 9)]),
        done("", "orange=red orange=orange orange=blue orange=green")
    );
    assert_eq!(
        claimed(&both, &[discrete("orange", 4), discrete("apple", 1)]),
        done(
            "apple=2",
            "orange=red orange=orange orange=blue orange=green apple=1"
        )
    );
    // Two reservations of one kind never get the same member.
    assert_eq!(
        claimed(&oranges, &[discrete("orange", 1), discrete("orange", 1)]),
        done("orange=blue orange=green", "orange=red orange=orange")
    );
    // Errors leave everything in place.
    for bad in [discrete("pear", 1), named("orange", "red")] {
        let (ok, left, task) = claimed(&both, &[discrete("apple", 1), bad]);
        assert_eq!((ok, left, task), (false, show(&both), String::new()));
    }
}

// 05-A37
#[test]
fn reclaims() {
    let described = [discrete("apple", 6)];
    let mut node = Vec::new();
    reclaim(&mut node, &[discrete("apple", 2)], &described);
    assert_eq!(show(&node), "apple=2");
    reclaim(&mut node, &[discrete("apple", 3)], &described);
    assert_eq!(show(&node), "apple=5");
    reclaim(&mut node, &[discrete("apple", 3)], &described);
    assert_eq!(show(&node), "apple=6", "never more than the node has");

    let oranges = names("orange", &["red", "green"]);
    let mut node = Vec::new();
    reclaim(&mut node, &oranges, &oranges);
    assert_eq!(show(&node), "orange=red orange=green");
    reclaim(&mut node, &names("orange", &["blue"]), &oranges);
    assert_eq!(
        show(&node),
        "orange=red orange=green",
        "blue is not described any more"
    );
}

// 05-A37
#[test]
fn sanitizing() {
    let sanitized = |available: &[GenericResource], described: &[GenericResource]| {
        let mut available = available.to_vec();
        sanitize(&mut available, described);
        show(&available)
    };
    let orange = |value| discrete("orange", value);
    assert_eq!(sanitized(&[orange(4)], &[]), "");
    assert_eq!(sanitized(&[orange(4)], &[orange(6)]), "orange=4");
    assert_eq!(sanitized(&[orange(4)], &[orange(2)]), "orange=2");
    assert_eq!(
        sanitized(
            &[
                orange(2),
                discrete("cake", 2),
                discrete("apple", 4),
                discrete("banana", 8)
            ],
            &[orange(2), discrete("banana", 6), discrete("cake", 6)],
        ),
        "orange=2 cake=2 banana=6"
    );
    let colours = names("orange", &["red", "green", "blue"]);
    assert_eq!(sanitized(&colours, &[]), "");
    assert_eq!(
        sanitized(&colours, &names("orange", &["blue", "red"])),
        "orange=red orange=blue"
    );
    // Changes of the type, both ways: the description replaces what was there, once.
    assert_eq!(sanitized(&colours, &[orange(5)]), "orange=5");
    assert_eq!(
        sanitized(
            &[discrete("apple", 1), orange(5)],
            &[&colours[..], &[discrete("apple", 2)]].concat()
        ),
        "apple=1 orange=red orange=green orange=blue"
    );
}

#[test]
fn textual_form() {
    for (text, parsed) in [
        ("apple=3", "apple=3"),
        (" apple = 3 , orange=red", "apple=3 orange=red"),
        ("gpu=a,ssd=2,gpu=b", "gpu=a ssd=2 gpu=b"),
    ] {
        assert_eq!(
            parse(text).map(|entries| show(&entries)),
            Ok(parsed.to_owned())
        );
    }
    for bad in [
        "",
        "apple",
        "apple=1=2",
        "=1",
        "apple=-1",
        "apple=3,apple=4",
        "apple=3,apple=red",
        "apple=red,apple=3",
        "apple=1\norange=2",
        "apple=1,",
        "\"apple=1\"",
    ] {
        let error = parse(bad).unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("could not parse GenericResource: "),
            "{bad:?}"
        );
    }
}

#[test]
fn environment_of_a_container() {
    let entries = [named("gpu", "g0"), discrete("ssd", 2), named("gpu", "g1")];
    assert_eq!(
        environment(&entries, "DOCKER_RESOURCE"),
        ["DOCKER_RESOURCE_GPU=g0,g1", "DOCKER_RESOURCE_SSD=2"]
    );
}
