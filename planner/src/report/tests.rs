use super::*;

/// A step with every kind of event in it.
fn report() -> Report {
    let transfer = |name: &str, kind, direction, at: u64, ending| TransferSpan {
        name: name.to_owned(),
        kind,
        bytes: Bytes(30 << 20),
        direction,
        target: Target::Ssd,
        begin: Nanos(at),
        moved: Nanos(at + 50_000),
        end: Nanos(at + 400_000),
        in_step: Bytes(30 << 20),
        urgent: false,
        ending,
    };
    let transfers = vec![
        transfer("w0", StorageKind::Parameter, MigrationDirection::Out, 100_000, Ending::Moved),
        transfer("w1", StorageKind::Parameter, MigrationDirection::Out, 200_000, Ending::Clean),
        transfer("m0", StorageKind::OptimizerState, MigrationDirection::In, 900_000, Ending::Moved),
        transfer(
            "m1",
            StorageKind::OptimizerState,
            MigrationDirection::In,
            950_000,
            Ending::Failed,
        ),
        transfer(
            "a0",
            StorageKind::Activation,
            MigrationDirection::Out,
            1_950_000,
            Ending::Cancelled,
        ),
    ];
    let sample = |at: u64, resident: u64, moving: u64| MemorySample {
        at: Nanos(at),
        resident: Bytes(resident << 20),
        moving: Bytes(moving << 20),
        wanted: Bytes(200 << 20),
    };
    Report {
        title: "a model".to_owned(),
        subtitle: "measured, step 3".to_owned(),
        duration: Nanos(2_000_000),
        unlimited: Some(Nanos(1_880_000)),
        budget: Bytes(100 << 20),
        staging: Bytes(8 << 20),
        memory: vec![sample(0, 60, 0), sample(100_000, 40, 30), sample(900_000, 50, 40)],
        ops: vec![OpSpan { name: "aten.mm".to_owned(), begin: Nanos(0), end: Nanos(800_000) }],
        transfers,
        stalls: vec![Stall {
            op: "aten.add (op 7)".to_owned(),
            begin: Nanos(800_000),
            end: Nanos(920_000),
            waited_for: "m0".to_owned(),
        }],
        read_limit: Some(Bandwidth(6_700_000_000)),
        written: vec![(StorageKind::Parameter, Bytes(30 << 20))],
        clean_evictions: 1,
        clean_bytes: Bytes(30 << 20),
        unmovable: vec![Unmovable {
            name: "tied.weight".to_owned(),
            bytes: Bytes(4096),
            why: "not resizable".to_owned(),
        }],
        notices: vec!["the third batch was smaller".to_owned()],
        ..Report::default()
    }
}

#[test]
fn the_page_says_what_matters_first() {
    let html = report().to_html();
    let claim = "A step holds <b>98 MiB</b> at its peak, 49 % of the 200 MiB that it would take, \
                 in <b>1.064×</b> the time.";
    assert!(html.contains(claim));
    let order = [
        "class=\"claim\"",
        "id=\"charts\"",
        "<h2>Written in a step</h2>",
        "1 storage that cannot move, 4 KiB",
    ];
    let places: Vec<_> = order.iter().map(|part| html.find(part).expect(part)).collect();
    assert!(places.is_sorted(), "{places:?}");
}

#[test]
fn the_bound_and_the_price_of_writing_less_stand_beside_the_step() {
    let mut report = report();
    assert!(!report.to_html().contains("lower bound"));
    report.bound = Some(Nanos(1_900_000));
    let point = |terabytes: u64, step, pause| BudgetPoint {
        per_day: Bytes(terabytes * 1_000_000_000_000),
        step: Nanos(step),
        pause: Nanos(pause),
        lasts: "9 <days>".to_owned(),
    };
    report.budgets = vec![point(90, 2_000_000, 0), point(45, 4_000_000, 1_000_000)];
    let html = report.to_html();
    for said in [
        "no plan can take less than 1.90 ms",
        "<th>lower bound</th><td class=\"number\">1.90 ms</td>",
        "class=\"moving\" style=\"width:95.0%\"",
        "<th>45 TB</th><td class=\"number\">4.00 ms</td><td class=\"number\">9 &lt;days&gt;</td>",
        "includes a pause",
    ] {
        assert!(html.contains(said), "{said}");
    }
}

#[test]
fn the_price_of_other_plans_stands_beside_the_step() {
    let mut report = report();
    let price = |time, gibibytes: u64, chosen| PlanPrice {
        time: Nanos(time),
        written: Bytes(gibibytes << 30),
        chosen,
    };
    report.prices = vec![price(2_000_000, 4, true)];
    assert!(!report.to_html().contains("other plans"), "there is no other one");
    report.prices.insert(0, price(1_990_000, 8, false));
    let html = report.to_html();
    for said in [
        "<h2>What other plans would cost</h2>",
        "<th>1.99 ms</th><td class=\"number\">8 GiB</td>",
        "<th>2.00 ms</th><td class=\"number\">4 GiB</td><td class=\"number\">this plan</td>",
    ] {
        assert!(html.contains(said), "{said}");
    }
}

#[test]
fn labels_are_whole_and_say_their_direction() {
    let mut report = report();
    for sample in &mut report.memory {
        sample.wanted = Bytes(181 << 20);
    }
    let html = report.to_html();
    assert!(html.contains(">128 MiB</span>"));
    assert!(!html.contains(">192 MiB</span>"), "beside the panel's title");
    assert!(html.contains(">1.50 ms</span>"));
    assert!(!html.contains(">2.00 ms</span>"), "cut at the end of the axis");
    assert!(html.contains(">in 6.70 GB/s</span>") && html.contains(">out "));
}

#[test]
fn the_page_needs_nothing_from_outside() {
    let html = report().to_html();
    for outside in ["http:", "https:", "src=", "@import", "url(//", "<link"] {
        assert!(!html.contains(outside), "{outside}");
    }
}

#[test]
fn names_cannot_break_out_of_the_page() {
    let evil = "</script><script>alert(1)</script><!--\"'>";
    let mut report = report();
    report.title = evil.to_owned();
    report.subtitle = evil.to_owned();
    report.ops[0].name = evil.to_owned();
    report.transfers[0].name = evil.to_owned();
    report.stalls[0].op = evil.to_owned();
    report.stalls[0].waited_for = evil.to_owned();
    report.unmovable[0].name = evil.to_owned();
    report.unmovable[0].why = evil.to_owned();
    report.notices.push(evil.to_owned());
    report.figures.push((evil.to_owned(), evil.to_owned()));
    let html = report.to_html();
    assert!(!html.contains("alert(1)</script>"));
    assert!(!html.contains("<!--"));
    assert_eq!(html.matches("<script").count(), 2, "the data and our own script");
    assert_eq!(html.matches("</script").count(), 2);
}

#[test]
fn every_transfer_and_stall_is_drawn() {
    let report = report();
    let html = report.to_html();
    for index in 0..report.transfers.len() {
        assert!(html.contains(&format!(
            "<rect class=\"bar {}",
            chart::kind_class(&report.transfers[index])
        )));
        assert!(html.contains(&format!(" data-t=\"{index}\" x=")), "transfer {index}");
    }
    // One stall: a bar of its own, and a tint in each of the five panels.
    assert_eq!(html.matches("<path class=\"stall\"").count(), 1);
    assert_eq!(html.matches("<path class=\"tint\"").count(), 5);
    for ending in ["clean", "failed", "cancelled"] {
        assert!(html.contains(&format!(" {ending}\"")), "{ending}");
    }
}

#[test]
fn thousands_of_stalls_are_one_element_of_each_panel() {
    let mut report = report();
    report.duration = Nanos(100_000);
    let stall = report.stalls[0].clone();
    // In pairs that touch, and a gap after each pair.
    let spans = (0..9000_u64).map(|i| (i * 10, i * 10 + if i % 2 == 0 { 10 } else { 5 }));
    let spans = spans.map(|(begin, end)| (Nanos(begin), Nanos(end)));
    report.stalls = spans.map(|(begin, end)| Stall { begin, end, ..stall.clone() }).collect();
    let html = report.to_html();
    assert_eq!(html.matches("<path class=\"stall\"").count(), 1);
    assert_eq!(html.matches("<path class=\"tint\"").count(), 5);
    for drawn in ["M0,0H15V", "M89980,0H89995V"] {
        assert_eq!(html.matches(drawn).count(), 6, "{drawn}");
    }
}

#[test]
fn an_empty_report_is_still_a_page() {
    let html = Report::default().to_html();
    assert!(html.ends_with("</html>\n") && html.contains("Nothing."));
}

#[test]
fn the_same_report_gives_the_same_bytes() {
    assert_eq!(report().to_html(), report().to_html());
}

#[test]
fn both_clocks_are_drawn_and_their_causes_named() {
    use crate::simulate::{CauseSpan, StepClocks, TimeCause};
    let span = |begin, end, cause| CauseSpan { begin: Nanos(begin), end: Nanos(end), cause };
    let thread = vec![span(0, 1_500_000, TimeCause::Dispatch)];
    let gpu = vec![
        span(0, 500_000, TimeCause::Kernels),
        span(500_000, 1_500_000, TimeCause::CopiesIn),
        span(1_500_000, 2_000_000, TimeCause::Kernels),
    ];
    let page = Report { clocks: StepClocks { gpu, thread: thread.clone() }, ..report() }.to_html();
    assert_eq!(page.matches("class=\"panel clock\"").count(), 2);
    assert!(page.contains("<path class=\"cause copies_in\" d=\"M25000,0H75000V16H25000Z\"/>"));
    assert!(page.contains("What took the time of the GPU"));
    assert!(page.contains("<tr><th>copies in</th><td class=\"number\">1.00 ms</td>"));
    let host = Report { clocks: StepClocks { gpu: Vec::new(), thread }, ..report() }.to_html();
    assert_eq!(host.matches("class=\"panel clock\"").count(), 1);
    assert!(host.contains("What took the time of the program's thread"));
    assert!(!report().to_html().contains("class=\"panel clock\""));
}
