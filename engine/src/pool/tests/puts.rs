//! Many puts at once.

use super::*;

fn one(id: u128, content: Vec<u8>) -> Put {
    Put { key: TensorId(id).into(), source: Source::from(content), options: PutOptions::default() }
}

#[test]
fn puts_together_take_effect_in_their_order_also_where_the_reactor_slept() {
    let pool = open(&disks(2, ByteCount::mib(4)));
    let mut tickets = Vec::new();
    for round in 0..20 {
        // Long enough for the reactor to fall asleep between some of them.
        std::thread::sleep(Duration::from_millis(round % 3));
        let content = |turn: u64| bytes(100 * round + turn, 5000 * turn as usize);
        pool.put_all((0..9).map(|turn| one(turn.into(), content(turn))), &mut tickets).unwrap();
        pool.put_all([one(8, content(3)), one(8, content(2))], &mut tickets).unwrap();
        assert_eq!(tickets.len(), 11);
        for ticket in tickets.drain(..) {
            ticket.wait().unwrap();
        }
        for turn in 0..8 {
            assert_eq!(get(&pool, turn.into()).unwrap(), content(turn));
        }
        assert_eq!(get(&pool, 8).unwrap(), content(2), "the last one put stands");
    }
    space(&pool);
}

#[test]
fn the_first_put_that_is_refused_ends_the_rest_and_those_before_it_go_on() {
    let pool = open(&disks(1, ByteCount::mib(4)));
    let mut tickets = Vec::new();
    let huge = one(2, vec![0; 16 << 20]);
    let refused = pool.put_all([one(1, vec![1]), huge, one(3, vec![3])], &mut tickets);
    assert!(matches!(refused, Err(PutError::PoolFull { .. })), "{refused:?}");
    assert_eq!(tickets.len(), 1);
    tickets[0].wait().unwrap();
    assert_eq!((get(&pool, 1), get(&pool, 3)), (Some(vec![1]), None));
    pool.close().unwrap();
    assert!(pool.put_all([one(1, vec![1])], &mut tickets).is_err());
}

#[test]
fn what_an_iterator_yielded_before_it_panicked_is_put() {
    let pool = open(&disks(1, ByteCount::mib(4)));
    let mut tickets = Vec::new();
    // The reactor sleeps by then.
    std::thread::sleep(Duration::from_millis(20));
    let yields = (0..2).map(|turn| if turn == 0 { one(1, vec![1]) } else { panic!("on purpose") });
    let all = std::panic::AssertUnwindSafe(|| pool.put_all(yields, &mut tickets));
    std::panic::catch_unwind(all).unwrap_err();
    assert!(tickets[0].wait_timeout(Duration::from_secs(20)).expect("it was begun").is_ok());
}
