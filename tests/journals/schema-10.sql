PRAGMA application_id = 1466322279;
PRAGMA user_version = 10;
BEGIN TRANSACTION;
CREATE TABLE bus_positions(
  bus TEXT NOT NULL,
  topic TEXT NOT NULL,
  part INTEGER NOT NULL,
  position INTEGER NOT NULL,
  checksum INTEGER NOT NULL,
  PRIMARY KEY(bus, topic, part)
) WITHOUT ROWID, STRICT;
CREATE TABLE confirmed(
  seq INTEGER PRIMARY KEY,
  body TEXT NOT NULL,
  checksum INTEGER NOT NULL
) STRICT;
INSERT INTO "confirmed" VALUES(5,'[[1,[[5,1795850307359463016,[{"step":[1,"confirmed"]}]]]],[2,[[2,1795850307359768970,[{"step":[0,"confirmed"]}]]]]]',394231845);
INSERT INTO "confirmed" VALUES(17,'[[4,[[2,1795850307672405938,[{"step":[0,"confirmed"]}]]]]]',2686959036);
INSERT INTO "confirmed" VALUES(40,'[[9,[[2,1795850307929717366,[{"step":[0,"confirmed"]}]]]],[10,[[2,1795850307929644118,[{"step":[0,"confirmed"]}]]]],[11,[[2,1795850307929749284,[{"step":[0,"confirmed"]}]]]],[12,[[2,1795850307929733601,[{"step":[0,"confirmed"]}]]]],[13,[[2,1795850307929699189,[{"step":[0,"confirmed"]}]]]]]',803051566);
INSERT INTO "confirmed" VALUES(50,'[[11,[[5,1795850307950371556,[{"step":[1,"confirmed"]}]]]]]',3226724208);
INSERT INTO "confirmed" VALUES(55,'[[14,[[7,1795850307965304955,[{"step":[1,"confirmed"]}]]]]]',398230749);
INSERT INTO "confirmed" VALUES(66,'[[16,[[14,1795850308151359104,[{"step":[2,"confirmed"]}]]]]]',1003468348);
INSERT INTO "confirmed" VALUES(69,'[[19,[[3,1795850308185031992,[{"step":[0,"confirmed"]}]]]]]',1616187346);
INSERT INTO "confirmed" VALUES(72,'[[20,[[2,1795850308240934207,[{"step":[0,"confirmed"]}]]]]]',3797746660);
INSERT INTO "confirmed" VALUES(73,'[[21,[[2,1795850308245830713,[{"step":[0,{"leased":{"delivery":1,"until":1795850645744594212}}]}]]]]]',2019675342);
CREATE TABLE definitions(
  number INTEGER PRIMARY KEY,
  hash BLOB NOT NULL UNIQUE,
  body TEXT NOT NULL
) STRICT;
INSERT INTO "definitions" VALUES(1,X'EE0FD1E524B1D28B3D3C9158E12C4A686B1CC9742E905A4153832096BA79701A','{"name":"chain","graphs":[{"name":"chain","steps":[{"name":"a","queue":"a"},{"name":"b","queue":"b","depends":[{"step":0}]},{"name":"c","queue":"c","depends":[{"step":1}]}]}]}');
INSERT INTO "definitions" VALUES(2,X'9D2F9FE0179AE5BB0EBAF4148F8255042F1A56B4E5F7112E938136BB78F3C1A1','{"name":"gather","graphs":[{"name":"gather","steps":[{"name":"split","queue":"split"},{"name":"items","queue":"items","depends":[{"step":0}],"task":1},{"name":"join","queue":"join","depends":[{"step":1},{"step":0}]}]},{"name":"item","fan_out":{"list_key":"sections","item_key":"section"},"steps":[{"name":"weigh","queue":"weigh"},{"name":"mark","queue":"mark","depends":[{"step":0}]}]}]}');
INSERT INTO "definitions" VALUES(3,X'CE28566515E3F3F6D49F128A7962CCC3F229B9D0F466721051B38139E6DB0BD9','{"name":"patient","deadline":315360000000,"graphs":[{"name":"patient","steps":[{"name":"late","queue":"late","timeout":311040000000,"retry":{"attempts":3,"backoff":259200000000,"factor_milli":2000,"max_backoff":259200000000}},{"name":"never","queue":"never","when":"input.never == true"},{"name":"last","queue":"last","depends":[{"step":0},{"step":1}]}]}]}');
INSERT INTO "definitions" VALUES(4,X'7F0B9811F22FD122D2F09CA2E39BA63FA3B3E2AC297FFD881F3B34921F343CE9','{"name":"person","graphs":[{"name":"person","steps":[{"name":"review","queue":"review","external":true,"status":{"words":["OPEN","APPROVED","REFUSED"]}},{"name":"tell","queue":"tell","depends":[{"step":0}]}]}]}');
INSERT INTO "definitions" VALUES(5,X'3A15DA5D129D3983A08F3DBF6B5EB956484256C630AE47427D533A004C241518','{"name":"timed","graphs":[{"name":"timed","steps":[{"name":"slow","queue":"slow","timeout":311040000000}]}]}');
INSERT INTO "definitions" VALUES(6,X'8D8DBEFD8F29DCD3AFF569B92D9A90FD4734FBE1E4738DFDE9938C1A6F245D61','{"name":"lent","bus":"embedded","graphs":[{"name":"lent","steps":[{"name":"held","queue":"held","bus":"embedded"}]}]}');
CREATE TABLE derived(upto INTEGER NOT NULL) STRICT;
INSERT INTO "derived" VALUES(73);
CREATE TABLE entries(
  seq INTEGER PRIMARY KEY,
  job INTEGER NOT NULL,
  first INTEGER NOT NULL,
  at INTEGER NOT NULL,
  body TEXT NOT NULL,
  checksum INTEGER NOT NULL,
  confirms TEXT,
  origin TEXT
) STRICT;
INSERT INTO "entries" VALUES(1,1,0,1795850307312593175,'[{"job":{"created":{"message":{"n":1,"large":12345678901234567890}}}},{"step":[0,{"started":{"attempt":1}}]}]',568693371,NULL,'["00000000-0000-4000-8000-000000000001",1,0,1,null,null,null,0,1795850307312553687]');
INSERT INTO "entries" VALUES(3,1,3,1795850307354849851,'[{"step":[0,{"completed":{"n":1.1}}]},{"step":[1,{"started":{"attempt":1}}]}]',2968332133,'[[2,1795850307329244214,[{"step":[0,"confirmed"]}]]]',NULL);
INSERT INTO "entries" VALUES(4,2,0,1795850307357783484,'[{"job":{"created":{"message":{"n":2}}}},{"step":[0,{"started":{"attempt":1}}]}]',1106581342,NULL,'["00000000-0000-4000-8000-000000000002",1,0,2,null,null,null,0,1795850307357760319]');
INSERT INTO "entries" VALUES(6,2,3,1795850307381157389,'[{"step":[0,{"completed":{"n":2}}]},{"step":[1,{"started":{"attempt":1}}]}]',416500316,'[[2,1795850307359768970,[{"step":[0,"confirmed"]}]]]',NULL);
INSERT INTO "entries" VALUES(7,2,6,1795850307406747412,'[{"step":[1,{"completed":{"n":2}}]},{"step":[2,{"started":{"attempt":1}}]}]',3436794438,'[[5,1795850307406720082,[{"step":[1,"confirmed"]}]]]',NULL);
INSERT INTO "entries" VALUES(9,2,9,1795850307460820212,'[{"step":[2,{"completed":{"sum":6}}]},{"job":"completed"}]',2083380388,'[[8,1795850307428980234,[{"step":[2,"confirmed"]}]]]',NULL);
INSERT INTO "entries" VALUES(10,3,0,1795850307534904076,'[{"job":{"created":{"message":{"n":3}}}},{"step":[0,{"started":{"attempt":1}}]}]',4120736954,NULL,'["00000000-0000-4000-8000-000000000003",1,0,3,null,null,null,0,1795850307534872469]');
INSERT INTO "entries" VALUES(11,3,3,1795850307548526280,'[{"step":[0,{"completed":{"n":3}}]},{"step":[1,{"started":{"attempt":1}}]}]',1490046133,'[[2,1795850307548321096,[{"step":[0,"confirmed"]}]]]',NULL);
INSERT INTO "entries" VALUES(12,3,6,1795850307567608387,'[{"step":[1,{"completed":{"n":3}}]},{"step":[2,{"started":{"attempt":1}}]}]',3008159258,'[[5,1795850307556591268,[{"step":[1,"confirmed"]}]]]',NULL);
INSERT INTO "entries" VALUES(14,3,9,1795850307636875183,'[{"step":[2,{"failed":{"reason":"the worker reported an error: no"}}]},{"job":{"failed":{"reason":"step \"c\": the worker reported an error: no","step":2}}}]',819614565,'[[8,1795850307596273794,[{"step":[2,"confirmed"]}]]]',NULL);
INSERT INTO "entries" VALUES(15,4,0,1795850307669934070,'[{"job":{"created":{"message":{"n":4}}}},{"step":[0,{"started":{"attempt":1}}]}]',3143026770,NULL,'["00000000-0000-4000-8000-000000000004",1,0,4,null,null,null,0,1795850307669912017]');
INSERT INTO "entries" VALUES(16,5,0,1795850307677563721,'[{"job":{"created":{"message":{}}}},{"step":[0,{"started":{"attempt":1}}]}]',916379304,NULL,'["00000000-0000-4000-8000-000000000011",2,0,5,null,null,null,0,1795850307677541418]');
INSERT INTO "entries" VALUES(19,5,3,1795850307778239476,'[{"step":[0,{"completed":{"sections":["x", "y"],"title":"t"}}]},{"fan_out":[1,{"started":{"items":2}}]},{"fan_out":[1,{"children_started":{"from":0,"count":2}}]}]',2495681496,'[[2,1795850307694211205,[{"step":[0,"confirmed"]}]]]',NULL);
INSERT INTO "entries" VALUES(20,6,0,1795850307778924552,'[{"job":{"created":{}}},{"step":[0,{"started":{"attempt":1}}]}]',2455800643,NULL,'["212c224d-8eb9-88fd-9ccb-ed7100000000",2,1,5,5,1,0,1,1795850307778904573]');
INSERT INTO "entries" VALUES(21,7,0,1795850307778998512,'[{"job":{"created":{}}},{"step":[0,{"started":{"attempt":1}}]}]',115550280,NULL,'["212c224d-8eb9-88fd-9ccb-ed7100000001",2,1,5,5,1,1,1,1795850307778986514]');
INSERT INTO "entries" VALUES(22,6,3,1795850307799706822,'[{"step":[0,{"completed":{"section":{"kg": 1}}}]},{"step":[1,{"started":{"attempt":1}}]}]',2823896870,'[[2,1795850307782386720,[{"step":[0,"confirmed"]}]]]',NULL);
INSERT INTO "entries" VALUES(25,6,6,1795850307821489115,'[{"step":[1,{"completed":{"section":{"kg": 1, "good": true}}}]},{"job":"completed"}]',422505670,'[[5,1795850307802913420,[{"step":[1,"confirmed"]}]]]',NULL);
INSERT INTO "entries" VALUES(26,7,3,1795850307822133110,'[{"step":[0,{"completed":{"section":{"kg": 1}}}]},{"step":[1,{"started":{"attempt":1}}]}]',1374382251,'[[2,1795850307782438487,[{"step":[0,"confirmed"]}]]]',NULL);
INSERT INTO "entries" VALUES(27,5,6,1795850307822409581,'[{"fan_out":[1,{"child_completed":{"index":0,"item":[0,{"kg": 1, "good": true}]}}]}]',3367027469,NULL,NULL);
INSERT INTO "entries" VALUES(29,7,6,1795850307849636593,'[{"step":[1,{"completed":{"section":{"kg": 1, "good": true}}}]},{"job":"completed"}]',3472238768,'[[5,1795850307826028781,[{"step":[1,"confirmed"]}]]]',NULL);
INSERT INTO "entries" VALUES(30,5,7,1795850307850840249,'[{"fan_out":[1,{"child_completed":{"index":1,"item":[0,{"kg": 1, "good": true}]}}]},{"fan_out":[1,"completed"]},{"step":[2,{"started":{"attempt":1}}]}]',2889821915,NULL,NULL);
INSERT INTO "entries" VALUES(32,5,11,1795850307881613825,'[{"step":[2,{"completed":{"kg":2}}]},{"job":"completed"}]',523483591,'[[10,1795850307855671569,[{"step":[2,"confirmed"]}]]]',NULL);
INSERT INTO "entries" VALUES(33,8,0,1795850307908740699,'[{"job":{"created":{"message":{"from":"a client"}}}},{"step":[0,{"started":{"attempt":1}}]}]',1649008330,NULL,'["00000000-0000-4000-8000-000000000010",2,0,8,null,null,null,0,1795850307908712487]');
INSERT INTO "entries" VALUES(34,8,3,1795850307920863588,'[{"step":[0,{"completed":{"sections":[1, 2, 3, 4, 5],"title":"t"}}]},{"fan_out":[1,{"started":{"items":5}}]},{"fan_out":[1,{"children_started":{"from":0,"count":5}}]}]',3132300300,'[[2,1795850307915288004,[{"step":[0,"confirmed"]}]]]',NULL);
INSERT INTO "entries" VALUES(35,9,0,1795850307921704446,'[{"job":{"created":{}}},{"step":[0,{"started":{"attempt":1}}]}]',3586859696,NULL,'["df6bfa5d-b653-8e1f-90be-96a300000000",2,1,8,8,1,0,1,1795850307921689654]');
INSERT INTO "entries" VALUES(36,10,0,1795850307921828180,'[{"job":{"created":{}}},{"step":[0,{"started":{"attempt":1}}]}]',2513737886,NULL,'["df6bfa5d-b653-8e1f-90be-96a300000001",2,1,8,8,1,1,1,1795850307921820158]');
INSERT INTO "entries" VALUES(37,11,0,1795850307921843292,'[{"job":{"created":{}}},{"step":[0,{"started":{"attempt":1}}]}]',725277844,NULL,'["df6bfa5d-b653-8e1f-90be-96a300000002",2,1,8,8,1,2,1,1795850307921837924]');
INSERT INTO "entries" VALUES(38,12,0,1795850307921879656,'[{"job":{"created":{}}},{"step":[0,{"started":{"attempt":1}}]}]',545895794,NULL,'["df6bfa5d-b653-8e1f-90be-96a300000003",2,1,8,8,1,3,1,1795850307921873947]');
INSERT INTO "entries" VALUES(39,13,0,1795850307921891043,'[{"job":{"created":{}}},{"step":[0,{"started":{"attempt":1}}]}]',70095576,NULL,'["df6bfa5d-b653-8e1f-90be-96a300000004",2,1,8,8,1,4,1,1795850307921885445]');
INSERT INTO "entries" VALUES(41,9,3,1795850307946436496,'[{"step":[0,{"completed":{"section":{"kg": 2}}}]},{"step":[1,{"started":{"attempt":1}}]}]',4186796150,'[[2,1795850307929717366,[{"step":[0,"confirmed"]}]]]',NULL);
INSERT INTO "entries" VALUES(42,10,3,1795850307947628415,'[{"step":[0,{"completed":{"section":{"kg": 2}}}]},{"step":[1,{"started":{"attempt":1}}]}]',1507525655,'[[2,1795850307929644118,[{"step":[0,"confirmed"]}]]]',NULL);
INSERT INTO "entries" VALUES(43,11,3,1795850307948593086,'[{"step":[0,{"completed":{"section":{"kg": 2}}}]},{"step":[1,{"started":{"attempt":1}}]}]',1159211645,'[[2,1795850307929749284,[{"step":[0,"confirmed"]}]]]',NULL);
INSERT INTO "entries" VALUES(45,9,6,1795850307949144435,'[{"step":[1,{"completed":{"section":{"kg": 2, "good": true}}}]},{"job":"completed"}]',3823853034,'[[5,1795850307948266942,[{"step":[1,"confirmed"]}]]]',NULL);
INSERT INTO "entries" VALUES(47,10,6,1795850307949870312,'[{"step":[1,{"completed":{"section":{"kg": 2, "good": true}}}]},{"job":"completed"}]',616268828,'[[5,1795850307949123353,[{"step":[1,"confirmed"]}]]]',NULL);
INSERT INTO "entries" VALUES(48,8,6,1795850307950017250,'[{"fan_out":[1,{"child_completed":{"index":0,"item":[0,{"kg": 2, "good": true}]}}]}]',2209893380,NULL,NULL);
INSERT INTO "entries" VALUES(49,8,7,1795850307950467949,'[{"fan_out":[1,{"child_completed":{"index":1,"item":[0,{"kg": 2, "good": true}]}}]}]',2034093531,NULL,NULL);
INSERT INTO "entries" VALUES(51,14,0,1795850307951072516,'[{"job":{"created":{"message":{"n":5}}}},{"step":[0,{"started":{"attempt":1}}]}]',3761785456,NULL,'["00000000-0000-4000-8000-000000000005",1,0,14,null,null,null,0,1795850307951060358]');
INSERT INTO "entries" VALUES(52,14,3,1795850307963413609,'[{"step":[0,{"completed":{"n":5}}]},{"step":[1,{"started":{"attempt":1}}]}]',3860032150,'[[2,1795850307952369150,[{"step":[0,"confirmed"]}]]]',NULL);
INSERT INTO "entries" VALUES(53,14,5,1795850307963779822,'[{"job":{"asked":{"operation":"pause"}}},{"job":"paused"}]',2500644312,NULL,NULL);
INSERT INTO "entries" VALUES(54,15,0,1795850307965439405,'[{"job":{"created":{"message":{"n":6}}}},{"step":[0,{"started":{"attempt":1}}]}]',1657393179,NULL,'["00000000-0000-4000-8000-000000000006",1,0,15,null,null,null,0,1795850307965425885]');
INSERT INTO "entries" VALUES(56,15,2,1795850307966526368,'[{"job":{"asked":{"operation":"cancel"}}},{"job":{"cancelled":{"reason":"by a call of the API"}}}]',1869951216,NULL,NULL);
INSERT INTO "entries" VALUES(57,16,0,1795850307967443249,'[{"job":{"created":{"message":{"n":7}}}},{"step":[0,{"started":{"attempt":1}}]}]',1571281825,NULL,'["00000000-0000-4000-8000-000000000007",1,0,16,null,null,null,0,1795850307967434916]');
INSERT INTO "entries" VALUES(59,16,3,1795850307973178129,'[{"step":[0,{"completed":{"n":7}}]},{"step":[1,{"started":{"attempt":1}}]}]',3751592173,'[[2,1795850307968711691,[{"step":[0,"confirmed"]}]]]',NULL);
INSERT INTO "entries" VALUES(60,16,6,1795850307975215181,'[{"step":[1,{"completed":{"n":7}}]},{"step":[2,{"started":{"attempt":1}}]}]',2702372531,'[[5,1795850307974470006,[{"step":[1,"confirmed"]}]]]',NULL);
INSERT INTO "entries" VALUES(62,16,9,1795850308024422671,'[{"step":[2,{"failed":{"reason":"the worker reported an error: not yet"}}]},{"job":{"failed":{"reason":"step \"c\": the worker reported an error: not yet","step":2}}}]',1068453422,'[[8,1795850307976154615,[{"step":[2,"confirmed"]}]]]',NULL);
INSERT INTO "entries" VALUES(63,16,11,1795850308129462171,'[{"job":{"asked":{"operation":"retry"}}},{"job":{"retried":{"round":1}}},{"step":[2,{"started":{"attempt":2}}]}]',1885886677,NULL,NULL);
INSERT INTO "entries" VALUES(64,17,0,1795850308133618659,'[{"job":{"created":{"message":{"never":false},"deadline":2111210308133618659}}},{"step":[0,{"started":{"attempt":1}}]},{"step":[1,"skipped"]}]',257560767,NULL,'["00000000-0000-4000-8000-000000000008",3,0,17,null,null,null,0,1795850308133594704]');
INSERT INTO "entries" VALUES(65,17,4,1795850308151873057,'[{"step":[0,{"attempt_failed":{"attempt":1,"failure":{"reason":"the worker reported an error: try again"},"retry_at":1978391235127127231}}]}]',1042289992,'[[3,1795850308150460932,[{"step":[0,"confirmed"]}]]]',NULL);
INSERT INTO "entries" VALUES(67,18,0,1795850308152550462,'[{"job":{"created":{"message":{"for":"a person"}}}},{"step":[0,{"started":{"attempt":1}}]}]',1455620984,NULL,'["00000000-0000-4000-8000-000000000009",4,0,18,null,null,null,0,1795850308152531574]');
INSERT INTO "entries" VALUES(68,19,0,1795850308183517365,'[{"job":{"created":{"message":{"n":12}}}},{"caller":{"joined":{"reply_to":"answers","bus":"amqp","correlation_id":"mine"}}},{"step":[0,{"started":{"attempt":1}}]}]',1181888023,NULL,'["00000000-0000-4000-8000-000000000012",1,0,19,null,null,null,0,1795850308183491536]');
INSERT INTO "entries" VALUES(70,20,0,1795850308237981655,'[{"job":{"created":{"message":{"n":13}}}},{"step":[0,{"started":{"attempt":1}}]}]',42206764,NULL,'["00000000-0000-4000-8000-000000000013",5,0,20,null,null,null,0,1795850308237954535]');
INSERT INTO "entries" VALUES(71,21,0,1795850308244227293,'[{"job":{"created":{"message":{"n":14}}}},{"step":[0,{"started":{"attempt":1}}]}]',2559946831,NULL,'["00000000-0000-4000-8000-000000000014",6,0,21,null,null,null,0,1795850308244163118]');
CREATE TABLE jobs(
  number INTEGER PRIMARY KEY,
  id BLOB NOT NULL,
  workflow TEXT NOT NULL,
  definition INTEGER NOT NULL REFERENCES definitions(number),
  graph INTEGER NOT NULL,
  root INTEGER NOT NULL,
  parent INTEGER,
  step INTEGER,
  item INTEGER,
  depth INTEGER NOT NULL,
  created INTEGER NOT NULL,
  state TEXT NOT NULL,
  ended INTEGER,
  open INTEGER NOT NULL,
  checksum INTEGER NOT NULL
) STRICT;
INSERT INTO "jobs" VALUES(1,X'00000000000040008000000000000001','chain',1,0,1,NULL,NULL,NULL,0,1795850307312553687,'running',NULL,1,2666456662);
INSERT INTO "jobs" VALUES(2,X'00000000000040008000000000000002','chain',1,0,2,NULL,NULL,NULL,0,1795850307357760319,'completed',1795850307460820212,0,1068845174);
INSERT INTO "jobs" VALUES(3,X'00000000000040008000000000000003','chain',1,0,3,NULL,NULL,NULL,0,1795850307534872469,'failed',1795850307636875183,0,4125746701);
INSERT INTO "jobs" VALUES(4,X'00000000000040008000000000000004','chain',1,0,4,NULL,NULL,NULL,0,1795850307669912017,'running',NULL,1,1436415327);
INSERT INTO "jobs" VALUES(5,X'00000000000040008000000000000011','gather',2,0,5,NULL,NULL,NULL,0,1795850307677541418,'completed',1795850307881613825,0,3223474040);
INSERT INTO "jobs" VALUES(6,X'212C224D8EB988FD9CCBED7100000000','gather',2,1,5,5,1,0,1,1795850307778904573,'completed',1795850307821489115,0,853987135);
INSERT INTO "jobs" VALUES(7,X'212C224D8EB988FD9CCBED7100000001','gather',2,1,5,5,1,1,1,1795850307778986514,'completed',1795850307849636593,0,239808014);
INSERT INTO "jobs" VALUES(8,X'00000000000040008000000000000010','gather',2,0,8,NULL,NULL,NULL,0,1795850307908712487,'running',NULL,1,2897015535);
INSERT INTO "jobs" VALUES(9,X'DF6BFA5DB6538E1F90BE96A300000000','gather',2,1,8,8,1,0,1,1795850307921689654,'completed',1795850307949144435,0,235085402);
INSERT INTO "jobs" VALUES(10,X'DF6BFA5DB6538E1F90BE96A300000001','gather',2,1,8,8,1,1,1,1795850307921820158,'completed',1795850307949870312,0,2091140534);
INSERT INTO "jobs" VALUES(11,X'DF6BFA5DB6538E1F90BE96A300000002','gather',2,1,8,8,1,2,1,1795850307921837924,'running',NULL,1,3490690339);
INSERT INTO "jobs" VALUES(12,X'DF6BFA5DB6538E1F90BE96A300000003','gather',2,1,8,8,1,3,1,1795850307921873947,'running',NULL,1,966303819);
INSERT INTO "jobs" VALUES(13,X'DF6BFA5DB6538E1F90BE96A300000004','gather',2,1,8,8,1,4,1,1795850307921885445,'running',NULL,1,2669147053);
INSERT INTO "jobs" VALUES(14,X'00000000000040008000000000000005','chain',1,0,14,NULL,NULL,NULL,0,1795850307951060358,'paused',NULL,1,2683681720);
INSERT INTO "jobs" VALUES(15,X'00000000000040008000000000000006','chain',1,0,15,NULL,NULL,NULL,0,1795850307965425885,'cancelled',1795850307966526368,0,51857900);
INSERT INTO "jobs" VALUES(16,X'00000000000040008000000000000007','chain',1,0,16,NULL,NULL,NULL,0,1795850307967434916,'running',NULL,1,308246134);
INSERT INTO "jobs" VALUES(17,X'00000000000040008000000000000008','patient',3,0,17,NULL,NULL,NULL,0,1795850308133594704,'running',NULL,1,625434546);
INSERT INTO "jobs" VALUES(18,X'00000000000040008000000000000009','person',4,0,18,NULL,NULL,NULL,0,1795850308152531574,'running',NULL,1,118903704);
INSERT INTO "jobs" VALUES(19,X'00000000000040008000000000000012','chain',1,0,19,NULL,NULL,NULL,0,1795850308183491536,'running',NULL,1,1728738329);
INSERT INTO "jobs" VALUES(20,X'00000000000040008000000000000013','timed',5,0,20,NULL,NULL,NULL,0,1795850308237954535,'running',NULL,1,1586877306);
INSERT INTO "jobs" VALUES(21,X'00000000000040008000000000000014','lent',6,0,21,NULL,NULL,NULL,0,1795850308244163118,'running',NULL,1,1256543238);
CREATE TABLE notices(
  number INTEGER PRIMARY KEY AUTOINCREMENT,
  at INTEGER NOT NULL,
  body TEXT NOT NULL,
  checksum INTEGER NOT NULL
) STRICT;
CREATE TABLE places(
  job INTEGER NOT NULL,
  first INTEGER NOT NULL,
  seq INTEGER NOT NULL,
  PRIMARY KEY(job, first)
) WITHOUT ROWID, STRICT;
INSERT INTO "places" VALUES(1,0,1);
INSERT INTO "places" VALUES(1,3,3);
INSERT INTO "places" VALUES(2,0,4);
INSERT INTO "places" VALUES(2,3,6);
INSERT INTO "places" VALUES(2,6,7);
INSERT INTO "places" VALUES(2,9,9);
INSERT INTO "places" VALUES(3,0,10);
INSERT INTO "places" VALUES(3,3,11);
INSERT INTO "places" VALUES(3,6,12);
INSERT INTO "places" VALUES(3,9,14);
INSERT INTO "places" VALUES(4,0,15);
INSERT INTO "places" VALUES(5,0,16);
INSERT INTO "places" VALUES(5,3,19);
INSERT INTO "places" VALUES(5,6,27);
INSERT INTO "places" VALUES(5,7,30);
INSERT INTO "places" VALUES(5,11,32);
INSERT INTO "places" VALUES(6,0,20);
INSERT INTO "places" VALUES(6,3,22);
INSERT INTO "places" VALUES(6,6,25);
INSERT INTO "places" VALUES(7,0,21);
INSERT INTO "places" VALUES(7,3,26);
INSERT INTO "places" VALUES(7,6,29);
INSERT INTO "places" VALUES(8,0,33);
INSERT INTO "places" VALUES(8,3,34);
INSERT INTO "places" VALUES(8,6,48);
INSERT INTO "places" VALUES(8,7,49);
INSERT INTO "places" VALUES(9,0,35);
INSERT INTO "places" VALUES(9,3,41);
INSERT INTO "places" VALUES(9,6,45);
INSERT INTO "places" VALUES(10,0,36);
INSERT INTO "places" VALUES(10,3,42);
INSERT INTO "places" VALUES(10,6,47);
INSERT INTO "places" VALUES(11,0,37);
INSERT INTO "places" VALUES(11,3,43);
INSERT INTO "places" VALUES(12,0,38);
INSERT INTO "places" VALUES(13,0,39);
INSERT INTO "places" VALUES(14,0,51);
INSERT INTO "places" VALUES(14,3,52);
INSERT INTO "places" VALUES(14,5,53);
INSERT INTO "places" VALUES(15,0,54);
INSERT INTO "places" VALUES(15,2,56);
INSERT INTO "places" VALUES(16,0,57);
INSERT INTO "places" VALUES(16,3,59);
INSERT INTO "places" VALUES(16,6,60);
INSERT INTO "places" VALUES(16,9,62);
INSERT INTO "places" VALUES(16,11,63);
INSERT INTO "places" VALUES(17,0,64);
INSERT INTO "places" VALUES(17,4,65);
INSERT INTO "places" VALUES(18,0,67);
INSERT INTO "places" VALUES(19,0,68);
INSERT INTO "places" VALUES(20,0,70);
INSERT INTO "places" VALUES(21,0,71);
CREATE TABLE "status_chain"(job TEXT NOT NULL, state TEXT NOT NULL, created TEXT NOT NULL, updated TEXT NOT NULL, "a" TEXT NOT NULL DEFAULT '', "b" TEXT NOT NULL DEFAULT '', "c" TEXT NOT NULL DEFAULT '') STRICT;
INSERT INTO "status_chain" VALUES('00000000-0000-4000-8000-000000000001','running','2026-11-28T07:18:27.312Z','2026-11-28T07:18:27.354Z','COMPLETED','PENDING','');
INSERT INTO "status_chain" VALUES('00000000-0000-4000-8000-000000000002','completed','2026-11-28T07:18:27.357Z','2026-11-28T07:18:27.460Z','COMPLETED','COMPLETED','COMPLETED');
INSERT INTO "status_chain" VALUES('00000000-0000-4000-8000-000000000003','failed','2026-11-28T07:18:27.534Z','2026-11-28T07:18:27.636Z','COMPLETED','COMPLETED','FAILED');
INSERT INTO "status_chain" VALUES('00000000-0000-4000-8000-000000000004','running','2026-11-28T07:18:27.669Z','2026-11-28T07:18:27.669Z','PENDING','','');
INSERT INTO "status_chain" VALUES('00000000-0000-4000-8000-000000000005','paused','2026-11-28T07:18:27.951Z','2026-11-28T07:18:27.963Z','COMPLETED','PENDING','');
INSERT INTO "status_chain" VALUES('00000000-0000-4000-8000-000000000006','cancelled','2026-11-28T07:18:27.965Z','2026-11-28T07:18:27.966Z','CANCELLED','','');
INSERT INTO "status_chain" VALUES('00000000-0000-4000-8000-000000000007','running','2026-11-28T07:18:27.967Z','2026-11-28T07:18:28.129Z','COMPLETED','COMPLETED','PENDING');
INSERT INTO "status_chain" VALUES('00000000-0000-4000-8000-000000000012','running','2026-11-28T07:18:28.183Z','2026-11-28T07:18:28.183Z','PENDING','','');
CREATE TABLE "status_gather"(job TEXT NOT NULL, state TEXT NOT NULL, created TEXT NOT NULL, updated TEXT NOT NULL, "split" TEXT NOT NULL DEFAULT '', "items" TEXT NOT NULL DEFAULT '', "join" TEXT NOT NULL DEFAULT '') STRICT;
INSERT INTO "status_gather" VALUES('00000000-0000-4000-8000-000000000011','completed','2026-11-28T07:18:27.677Z','2026-11-28T07:18:27.881Z','COMPLETED','COMPLETED','COMPLETED');
INSERT INTO "status_gather" VALUES('00000000-0000-4000-8000-000000000010','running','2026-11-28T07:18:27.908Z','2026-11-28T07:18:27.920Z','COMPLETED','PENDING','');
CREATE TABLE "status_lent"(job TEXT NOT NULL, state TEXT NOT NULL, created TEXT NOT NULL, updated TEXT NOT NULL, "held" TEXT NOT NULL DEFAULT '') STRICT;
INSERT INTO "status_lent" VALUES('00000000-0000-4000-8000-000000000014','running','2026-11-28T07:18:28.244Z','2026-11-28T07:18:28.244Z','PENDING');
CREATE TABLE "status_patient"(job TEXT NOT NULL, state TEXT NOT NULL, created TEXT NOT NULL, updated TEXT NOT NULL, "late" TEXT NOT NULL DEFAULT '', "never" TEXT NOT NULL DEFAULT '', "last" TEXT NOT NULL DEFAULT '') STRICT;
INSERT INTO "status_patient" VALUES('00000000-0000-4000-8000-000000000008','running','2026-11-28T07:18:28.133Z','2026-11-28T07:18:28.133Z','PENDING','SKIPPED','');
CREATE TABLE "status_person"(job TEXT NOT NULL, state TEXT NOT NULL, created TEXT NOT NULL, updated TEXT NOT NULL, "review" TEXT NOT NULL DEFAULT '', "tell" TEXT NOT NULL DEFAULT '') STRICT;
INSERT INTO "status_person" VALUES('00000000-0000-4000-8000-000000000009','running','2026-11-28T07:18:28.152Z','2026-11-28T07:18:28.152Z','OPEN','');
CREATE TABLE "status_timed"(job TEXT NOT NULL, state TEXT NOT NULL, created TEXT NOT NULL, updated TEXT NOT NULL, "slow" TEXT NOT NULL DEFAULT '') STRICT;
INSERT INTO "status_timed" VALUES('00000000-0000-4000-8000-000000000013','running','2026-11-28T07:18:28.237Z','2026-11-28T07:18:28.237Z','PENDING');
CREATE INDEX jobs_by_id ON jobs(id);
CREATE INDEX jobs_by_place ON jobs(root, parent, step, item);
CREATE INDEX jobs_open ON jobs(number) WHERE open = 1;
CREATE INDEX jobs_running ON jobs(workflow, number) WHERE parent IS NULL AND ended IS NULL;
CREATE INDEX jobs_ended ON jobs(workflow, ended) WHERE parent IS NULL AND ended IS NOT NULL;
CREATE INDEX jobs_retained ON jobs(definition, ended) WHERE parent IS NULL AND ended IS NOT NULL;
CREATE INDEX jobs_top ON jobs(number) WHERE parent IS NULL;
CREATE INDEX jobs_by_state ON jobs(workflow, state, number) WHERE parent IS NULL;
CREATE INDEX jobs_top_by_state ON jobs(state, number) WHERE parent IS NULL;
CREATE INDEX jobs_children_failed ON jobs(parent, state, step, item) WHERE parent IS NOT NULL AND state IN ('failed', 'cancelled');
CREATE UNIQUE INDEX "index job of chain" ON "status_chain"("job");
CREATE INDEX "index state of chain" ON "status_chain"("state");
CREATE INDEX "index a of chain" ON "status_chain"("a");
CREATE INDEX "index b of chain" ON "status_chain"("b");
CREATE INDEX "index c of chain" ON "status_chain"("c");
CREATE UNIQUE INDEX "index job of gather" ON "status_gather"("job");
CREATE INDEX "index state of gather" ON "status_gather"("state");
CREATE INDEX "index split of gather" ON "status_gather"("split");
CREATE INDEX "index items of gather" ON "status_gather"("items");
CREATE INDEX "index join of gather" ON "status_gather"("join");
CREATE UNIQUE INDEX "index job of lent" ON "status_lent"("job");
CREATE INDEX "index state of lent" ON "status_lent"("state");
CREATE INDEX "index held of lent" ON "status_lent"("held");
CREATE UNIQUE INDEX "index job of patient" ON "status_patient"("job");
CREATE INDEX "index state of patient" ON "status_patient"("state");
CREATE INDEX "index late of patient" ON "status_patient"("late");
CREATE INDEX "index never of patient" ON "status_patient"("never");
CREATE INDEX "index last of patient" ON "status_patient"("last");
CREATE UNIQUE INDEX "index job of person" ON "status_person"("job");
CREATE INDEX "index state of person" ON "status_person"("state");
CREATE INDEX "index review of person" ON "status_person"("review");
CREATE INDEX "index tell of person" ON "status_person"("tell");
CREATE UNIQUE INDEX "index job of timed" ON "status_timed"("job");
CREATE INDEX "index state of timed" ON "status_timed"("state");
CREATE INDEX "index slow of timed" ON "status_timed"("slow");
DELETE FROM "sqlite_sequence";
COMMIT;
